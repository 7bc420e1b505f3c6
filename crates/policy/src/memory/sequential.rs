//! How many pages to give at once to faults of one kind that come page behind page: first writes,
//! first reads, writes to protected pages.

use ramfold_codec::PAGE_SIZE;

/// Places that are followed at a time: threads, and the areas of an allocator.
const RUNS: usize = 8;

/// The latest faults of one kind. Each run of faults is given twice as many pages as the fault
/// before it. Memory of zeros is a valid start.
#[derive(Default)]
#[repr(C)]
pub struct Sequential {
    runs: [Run; RUNS],
    /// The run that was used last.
    last: usize,
}

#[derive(Default)]
#[repr(C)]
struct Run {
    /// Address at which the next fault is expected.
    next: usize,
    pages: usize,
    /// Faults since it was used.
    age: u32,
}

impl Sequential {
    /// Returns how many pages to give to a fault at `address`, at least 1 and at most `most`.
    pub fn pages(&mut self, address: usize, most: usize) -> usize {
        self.runs.iter_mut().for_each(|run| run.age = run.age.saturating_add(1));
        let found = self.runs.iter().position(|run| run.next == address && run.pages > 0);
        let oldest = || (0..RUNS).max_by_key(|&nth| self.runs[nth].age).unwrap_or(0);
        self.last = found.unwrap_or_else(oldest);
        let run = &mut self.runs[self.last];
        run.age = 0;
        run.pages = if found.is_some() { (run.pages * 2).min(most) } else { 1 };
        run.pages
    }

    /// Notes that the fault at `address` was given `pages` pages.
    pub fn note_done(&mut self, address: usize, pages: usize) {
        self.runs[self.last].next = address + pages * PAGE_SIZE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages given to faults at these pages, when all that is asked for is done.
    fn given(runs: &mut Sequential, faults: &[usize]) -> Vec<usize> {
        let give = |&page: &usize| {
            let pages = runs.pages(page * PAGE_SIZE, 16);
            runs.note_done(page * PAGE_SIZE, pages);
            pages
        };
        faults.iter().map(give).collect()
    }

    #[test]
    fn runs_grow_side_by_side() {
        let mut runs = Sequential::default();
        assert_eq!(given(&mut runs, &[100, 101, 103, 107, 115, 131]), [1, 2, 4, 8, 16, 16]);
        assert_eq!(given(&mut runs, &[500, 147, 501, 163, 503]), [1, 16, 2, 16, 4]);
        // As many others as there is room for, and one more.
        assert_eq!(given(&mut runs, &[1000, 2000, 3000, 4000, 5000, 6000, 7000]), [1; 7]);
        assert_eq!(given(&mut runs, &[507, 179]), [8, 1]);
    }
}
