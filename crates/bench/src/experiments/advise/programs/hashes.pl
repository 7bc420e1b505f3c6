# Counts and looks up words in a hash: SEED COUNT PASSES.
use strict;
use warnings;

my ($seed, $count, $passes) = @ARGV;
my (%words, $state);
$state = $seed;
sub next_number { $state = ($state * 1103515245 + 12345) % 2147483648; return $state >> 8; }
for my $number (1 .. $count) {
    $words{"key $number"} = "value " . next_number() . " of a word";
}
my $sum = 0;
for my $pass (1 .. $passes) {
    for (1 .. $count) {
        my $number = $pass % 2 ? 1 + next_number() % $count : 1 + next_number() % (1 + $count / 8);
        $sum += length $words{"key $number"};
    }
}
print "$sum\n";
