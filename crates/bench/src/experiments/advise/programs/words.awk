# Counts words and pairs of words, and asks for them: SEED COUNT PASSES.
BEGIN {
    seed = ARGV[1]; count = ARGV[2]; passes = ARGV[3]
    state = seed
    for (nth = 1; nth <= count; nth++) {
        state = (state * 16807) % 2147483647
        pairs["word " int(state / 1000) " and " nth] = "seen " nth
        keys[nth] = int(state / 1000)
    }
    for (pass = 1; pass <= passes; pass++)
        for (nth = 1; nth <= count; nth++) {
            state = (state * 16807) % 2147483647
            one = state % count + 1
            sum += length(pairs["word " keys[one] " and " one])
        }
    print sum
}
