//! The order of runs, where several subjects are measured in turn.

/// The runs of `count` subjects in each of several rounds: the number of the round, and that of the
/// subject. Another subject begins each round, so that none always follows the same one.
pub(crate) fn turns(rounds: usize, count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..count).map(move |turn| (round, (turn + round) % count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_begins_with_another() {
        let all: Vec<_> = turns(2, 3).collect();
        assert_eq!(all, [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (1, 0)]);
        assert_eq!(turns(5, 0).count(), 0);
    }
}
