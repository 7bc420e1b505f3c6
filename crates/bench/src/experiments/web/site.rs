//! The files of the server, and which its visitors want: the Support workload of SPECweb2005, after
//! its published figures.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::content::file_content::{FileContent, Parts};
use crate::content::random::{Random, Zipf};
use crate::machine::interrupt;

/// Directories of downloads for each session.
const DIRECTORIES_PER_SESSION: f64 = 0.25;
/// A directory is chosen by Zipf's law with this exponent.
const EXPONENT: f64 = 1.2;
const THINK_SECONDS_MEAN: f64 = 5.0;
const THINK_SECONDS_MAX: f64 = 75.0;
/// Bytes of a page that is no download. The benchmark makes these by programs.
const PAGE_BYTES: u64 = 16 << 10;
/// Bytes a second from which on a download is good, and tolerable.
pub(super) const GOOD: f64 = 99_000.0;
pub(super) const TOLERABLE: f64 = 95_000.0;

/// Downloads of one class: how often one of them is wanted, and of each its size and how often it
/// is.
struct Class {
    probability: f64,
    files: &'static [(u64, f64)],
}

/// Those of a directory.
const CLASSES: [Class; 6] = [
    Class {
        probability: 0.1366,
        files: &[
            (104_858, 0.273),
            (2 * 104_858, 0.091),
            (3 * 104_858, 0.165),
            (4 * 104_858, 0.186),
            (5 * 104_858, 0.285),
        ],
    },
    Class { probability: 0.1261, files: &[(629_146, 0.579), (754_975, 0.178), (880_804, 0.243)] },
    Class {
        probability: 0.2840,
        files: &[(1_048_576, 0.275), (1_541_407, 0.170), (2_034_238, 0.170), (2_527_069, 0.385)],
    },
    Class { probability: 0.2232, files: &[(4_194_304, 0.667), (5_546_967, 0.333)] },
    Class { probability: 0.1250, files: &[(9_992_929, 1.0)] },
    Class { probability: 0.1051, files: &[(37_748_736, 1.0)] },
];

/// Pages, and how many percent of all they are. The rest, 6.8 %, are downloads.
const PAGES: [(&str, f64); 6] = [
    ("home", 8.1),
    ("search", 12.6),
    ("catalog", 11.7),
    ("product", 24.8),
    ("fileCatalog", 22.5),
    ("file", 13.5),
];

/// The site for a number of sessions; everything is `scale` times smaller than in the benchmark.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site {
    pub(super) sessions: usize,
    pub(super) scale: u32,
}

/// A file of the site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// Below the site's folder.
    pub(super) path: String,
    pub(super) bytes: u64,
    pub(super) download: bool,
}

impl Site {
    pub(super) fn directories(self) -> usize {
        ((self.sessions as f64 * DIRECTORIES_PER_SESSION).ceil() as usize).max(1)
    }

    /// Writes all files.
    ///
    /// # Errors
    /// When that fails, or a signal came.
    pub(super) fn write(self, folder: &Path, content: &FileContent) -> Result<()> {
        let mut bytes = Bytes { parts: content.parts(0), part: Vec::new(), place: 0 };
        for page in 0..PAGES.len() {
            write(folder, &self.page(page), &mut bytes)?;
        }
        for directory in 0..self.directories() {
            interrupt::check()?;
            let path = folder.join(directory_name(directory));
            fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
            for (class, of_class) in CLASSES.iter().enumerate() {
                for file in 0..of_class.files.len() {
                    write(folder, &self.download(directory, class, file), &mut bytes)?;
                }
            }
        }
        Ok(())
    }

    /// A page, and of each class the largest file.
    pub(super) fn samples(self) -> Vec<Item> {
        let largest = |class: usize| self.download(0, class, CLASSES[class].files.len() - 1);
        [self.page(0)].into_iter().chain((0..CLASSES.len()).map(largest)).collect()
    }

    fn page(self, page: usize) -> Item {
        Item { path: PAGES[page].0.to_owned(), bytes: self.scaled(PAGE_BYTES), download: false }
    }

    fn download(self, directory: usize, class: usize, file: usize) -> Item {
        Item {
            path: format!("{}/{class}-{file}", directory_name(directory)),
            bytes: self.scaled(CLASSES[class].files[file].0),
            download: true,
        }
    }

    fn scaled(self, bytes: u64) -> u64 {
        (bytes / u64::from(self.scale)).max(1)
    }
}

fn directory_name(directory: usize) -> String {
    format!("dir{directory:05}")
}

fn write(folder: &Path, item: &Item, bytes: &mut Bytes<'_>) -> Result<()> {
    let path = folder.join(&item.path);
    let describe = || format!("cannot write {}", path.display());
    let mut file = File::create(&path).with_context(describe)?;
    let mut left = item.bytes;
    while left > 0 {
        let next = bytes.next(left)?;
        file.write_all(next).with_context(describe)?;
        left -= next.len() as u64;
    }
    Ok(())
}

/// The parts of some content as one stream.
struct Bytes<'a> {
    parts: Parts<'a>,
    part: Vec<u8>,
    place: usize,
}

impl Bytes<'_> {
    fn next(&mut self, most: u64) -> Result<&[u8]> {
        while self.place == self.part.len() {
            (self.part, self.place) = (self.parts.next_part()?, 0);
        }
        let start = self.place;
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.place += most.min(self.part.len() - start);
        Ok(&self.part[start..self.place])
    }
}

/// A visitor of the site, and what they want next.
pub(super) struct Visitor {
    site: Site,
    random: Random,
    directories: Zipf,
}

impl Visitor {
    pub(super) fn new(site: Site, seed: u64) -> Visitor {
        let directories = Zipf::new(site.directories(), EXPONENT);
        Visitor { site, random: Random::new(seed), directories }
    }

    /// What is wanted next.
    pub(super) fn choose(&mut self) -> Item {
        let mut left = self.random.unit() * 100.0;
        for (page, (_, percent)) in PAGES.iter().enumerate() {
            left -= percent;
            if left < 0.0 {
                return self.site.page(page);
            }
        }
        let directory = self.directories.sample(&mut self.random);
        let class = pick(&mut self.random, CLASSES.iter().map(|class| class.probability));
        let file = pick(&mut self.random, CLASSES[class].files.iter().map(|(_, share)| *share));
        self.site.download(directory, class, file)
    }

    /// How long they pause before that.
    pub(super) fn think(&mut self) -> Duration {
        let seconds = -THINK_SECONDS_MEAN * (1.0 - self.random.unit()).ln();
        Duration::from_secs_f64(seconds.min(THINK_SECONDS_MAX) / f64::from(self.site.scale))
    }
}

/// One of several, each with its probability; the last one where rounding leaves something over.
fn pick(random: &mut Random, probabilities: impl ExactSizeIterator<Item = f64>) -> usize {
    let (mut left, last) = (random.unit(), probabilities.len() - 1);
    for (place, probability) in probabilities.enumerate() {
        left -= probability;
        if left < 0.0 {
            return place;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_benchmark() {
        let files: Vec<u64> =
            CLASSES.iter().flat_map(|class| class.files).map(|(bytes, _)| *bytes).collect();
        assert_eq!(files.len(), 16);
        let sum = files.iter().sum::<u64>() as f64;
        assert!((68.4e6..68.6e6).contains(&sum), "{sum}");
        let is_one = |sum: f64| (sum - 1.0).abs() < 1e-9;
        assert!(is_one(CLASSES.iter().map(|class| class.probability).sum()));
        assert!(CLASSES.iter().all(|class| is_one(class.files.iter().map(|(_, p)| p).sum())));
        let pages: f64 = PAGES.iter().map(|(_, percent)| percent).sum();
        assert!((pages - 93.2).abs() < 1e-9, "{pages}");
    }

    #[test]
    fn visitors_want_what_the_mix_says() {
        let site = Site { sessions: 400, scale: 16 };
        let mut visitor = Visitor::new(site, 1);
        const COUNT: usize = 200_000;
        let wanted: Vec<Item> = (0..COUNT).map(|_| visitor.choose()).collect();
        let share = |is: &dyn Fn(&Item) -> bool| {
            wanted.iter().filter(|item| is(item)).count() as f64 / COUNT as f64
        };
        assert!((share(&|item| item.path == "product") - 0.248).abs() < 0.005);
        let downloads = share(&|item| item.download);
        assert!((downloads - 0.068).abs() < 0.003, "{downloads}");
        let large = share(&|item| item.path.ends_with("/5-0"));
        assert!((large / downloads - 0.1051).abs() < 0.01, "{large}");
        // Of 100 directories the first has 1 / (sum of k^-1.2), 28 %.
        let first = share(&|item| item.path.starts_with("dir00000/"));
        assert!((first / downloads - 0.278).abs() < 0.02, "{first}");
        assert!(wanted.iter().all(|item| !item.path.starts_with("dir00100")));
        let thought: f64 = (0..COUNT).map(|_| visitor.think().as_secs_f64()).sum();
        assert!((thought / COUNT as f64 * 16.0 - 5.0).abs() < 0.1, "{thought}");
    }

    #[test]
    fn all_files_are_there_in_their_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let site = Site { sessions: 5, scale: 1024 };
        site.write(folder.path(), &FileContent::Generated { seed: 1 }).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), PAGES.len() + 2);
        let mut visitor = Visitor::new(site, 3);
        for item in site.samples().into_iter().chain((0..1000).map(|_| visitor.choose())) {
            let path = folder.path().join(&item.path);
            assert_eq!(fs::metadata(&path).unwrap().len(), item.bytes, "{}", item.path);
        }
    }
}
