//! What happens to objects, in order: what an allocator has to do.

use crate::content::random::Random;

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    Put {
        id: u32,
        len: u16,
    },
    Free {
        id: u32,
    },
    /// The allocator may move what there is.
    Compact,
    /// Memory and times up to here become a row.
    Point(Point),
}

/// After what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Point {
    Fill,
    Churn,
    CompactingChurn,
    Shrink,
    Compaction,
    /// Of a recorded trace: where the objects had the most bytes, and after each quarter.
    Most,
    Quarter,
    Half,
    ThreeQuarters,
    End,
}

impl Point {
    pub(super) fn name(self) -> &'static str {
        match self {
            Point::Fill => "fill",
            Point::Churn => "churn",
            Point::CompactingChurn => "churn, compacting",
            Point::Shrink => "shrink",
            Point::Compaction => "compaction",
            Point::Most => "most bytes",
            Point::Quarter => "1/4",
            Point::Half => "1/2",
            Point::ThreeQuarters => "3/4",
            Point::End => "end",
        }
    }
}

pub(super) struct Trace {
    pub(super) name: String,
    /// Numbers of objects are below this.
    pub(super) objects: u32,
    pub(super) steps: Vec<Step>,
}

/// Lengths that objects have.
pub(super) struct Lengths(Vec<u16>);

/// How often each object is replaced.
const CHURN: usize = 4;
/// Compactions while that is done.
const COMPACTIONS: usize = 16;
/// All but one in this many objects are freed at the end.
const SHRINK: usize = 4;
/// Frees and stores that come together, as reclaim's chunks and a stream's windows do.
const TOGETHER: usize = 32;

impl Lengths {
    /// As compressed heap pages have them: most between 600 and 2000 bytes, a few very small, a few
    /// raw.
    pub(super) fn heap() -> Lengths {
        let mut random = Random::new(11);
        let lengths = (0..10_000).map(|_| match random.below(100) {
            0..5 => 40 + random.below(260),
            5..95 => 600 + random.below(701) + random.below(701),
            95..98 => 2000 + random.below(1600),
            _ => 4096,
        });
        Lengths(lengths.map(|len| len as u16).collect())
    }

    /// Those of objects that were seen; `None` if there were none.
    pub(super) fn of(lengths: Vec<u16>) -> Option<Lengths> {
        (!lengths.is_empty()).then_some(Lengths(lengths))
    }

    fn any(&self, random: &mut Random) -> u16 {
        self.0[random.below(self.0.len())]
    }
}

impl Trace {
    /// So many objects are stored; each is replaced a few times by one of another length, in any
    /// order; the same again, with compaction now and then, as the store's owner does it; most of
    /// them go, in any order; and what is left is compacted.
    pub(super) fn synthetic(name: &str, objects: u32, lengths: &Lengths, seed: u64) -> Trace {
        let mut random = Random::new(seed);
        let mut steps: Vec<Step> =
            (0..objects).map(|id| Step::Put { id, len: lengths.any(&mut random) }).collect();
        steps.push(Step::Point(Point::Fill));
        let rounds = objects as usize * CHURN / TOGETHER;
        for round in 0..2 * rounds {
            if round == rounds {
                steps.push(Step::Point(Point::Churn));
            }
            if round >= rounds && round % (rounds / COMPACTIONS).max(1) == 0 {
                steps.push(Step::Compact);
            }
            let mut ids: Vec<u32> =
                (0..TOGETHER).map(|_| random.below(objects as usize) as u32).collect();
            ids.sort_unstable();
            ids.dedup();
            steps.extend(ids.iter().map(|&id| Step::Free { id }));
            steps.extend(ids.iter().map(|&id| Step::Put { id, len: lengths.any(&mut random) }));
        }
        steps.push(Step::Point(Point::CompactingChurn));
        let goes = |random: &mut Random| random.below(SHRINK) != 0;
        steps.extend((0..objects).filter(|_| goes(&mut random)).map(|id| Step::Free { id }));
        steps.push(Step::Point(Point::Shrink));
        steps.push(Step::Compact);
        steps.push(Step::Point(Point::Compaction));
        Trace { name: name.to_owned(), objects, steps }
    }

    /// Room for all objects of a trace at their longest.
    pub(super) fn pool_bytes_max(&self) -> usize {
        (self.objects as usize * 4096 * 2).next_power_of_two().max(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_freed_is_there_and_what_is_stored_is_not() {
        let trace = Trace::synthetic("t", 1000, &Lengths::heap(), 1);
        let mut live = vec![false; 1000];
        let (mut points, mut puts, mut compactions) = (Vec::new(), 0, 0);
        for step in &trace.steps {
            match step {
                Step::Put { id, len } => {
                    assert!(!std::mem::replace(&mut live[*id as usize], true));
                    assert!((1..=4096).contains(len));
                    puts += 1;
                }
                Step::Free { id } => assert!(std::mem::replace(&mut live[*id as usize], false)),
                Step::Compact => compactions += 1,
                Step::Point(point) => points.push(point.name()),
            }
        }
        assert_eq!(points, ["fill", "churn", "churn, compacting", "shrink", "compaction"]);
        assert!(puts > 8000 && compactions > COMPACTIONS);
        let left = live.iter().filter(|&&live| live).count();
        assert!((150..350).contains(&left), "{left}");
    }
}
