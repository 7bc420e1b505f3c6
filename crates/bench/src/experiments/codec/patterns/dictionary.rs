//! PBPM's dictionary, of any size.

use ramfold_codec::pbpm;

/// What a dictionary has of a word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    Miss,
    /// xmxx
    Third,
    /// mmxx
    Two,
    /// mmmx
    Three,
    /// mmmm
    Full,
}

pub(super) struct Dictionary {
    ways: usize,
    /// By set; in each the latest first.
    sets: Vec<Vec<u32>>,
    set_of: [usize; 256],
}

impl Dictionary {
    pub(super) fn new(entries: usize, ways: usize) -> Dictionary {
        let count = entries / ways;
        // The paper has random tables. This one is PBPM's for its own eight sets, and goes on in
        // the same way for others: every set has as many bytes.
        let set_of = std::array::from_fn(|byte| {
            let eighth = usize::from(pbpm::SET[byte]);
            (eighth + 8 * (byte * 167 / 8)) % count
        });
        Dictionary { ways, sets: vec![vec![0; ways]; count], set_of }
    }

    pub(super) fn look_up(&mut self, word: u32) -> Match {
        let set = &mut self.sets[self.set_of[(word >> 16 & 0xff) as usize]];
        let matches = |entry: &u32| match entry ^ word {
            0 => Match::Full,
            different if different >> 8 == 0 => Match::Three,
            different if different >> 16 == 0 => Match::Two,
            different if different >> 16 & 0xff == 0 => Match::Third,
            _ => Match::Miss,
        };
        let best = set.iter().map(matches).max().unwrap_or(Match::Miss);
        if best != Match::Full {
            // The oldest goes.
            set.insert(0, word);
            set.truncate(self.ways);
        }
        best
    }
}
