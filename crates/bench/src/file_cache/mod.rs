//! What the measurements of `ramfold mount` have in common: data on a disk, and who keeps what was read of it.
//!
//! Everything that takes part (the program that reads, and ramfold) is in one cgroup: its limit is the memory
//! of both levels, its page cache counted, and its reads are slowed down to what a slow disk gives.

mod bed;
mod content;
mod disk;
mod mounted;
pub mod shares;

use anyhow::{Result, bail};

pub use bed::{Bed, Meter, Setup, Spent, Stage};
pub use content::{FileContent, Parts};
pub use disk::{Disk, Slowdown};

const SHARE_OPTION: &str = "--compressed-share=";

/// Who keeps what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The kernel, by itself.
    PageCache,
    /// Nobody: each read is one of the disk (O_DIRECT).
    Disk,
    /// `ramfold mount`, with these options.
    Ramfold { options: Vec<String> },
}

impl Cache {
    /// `page-cache`, `disk`, `ramfold`, or `ramfold:OPTION=VALUE` with any number of options.
    ///
    /// # Errors
    /// When it is none of those.
    pub fn named(name: &str) -> Result<Cache> {
        match name {
            "page-cache" => return Ok(Cache::PageCache),
            "disk" => return Ok(Cache::Disk),
            _ => {}
        }
        let Some(settings) = name.strip_prefix("ramfold") else {
            bail!("there is no cache '{name}'; there are page-cache, disk and ramfold");
        };
        let mut options = Vec::new();
        for setting in settings.split(':').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some((option @ ("codec" | "cluster" | "compressed-share"), value)) => {
                    options.push(format!("--{option}={value}"));
                }
                _ => bail!(
                    "'{name}': write ramfold:OPTION=VALUE with codec, cluster or compressed-share"
                ),
            }
        }
        Ok(Cache::Ramfold { options })
    }

    /// Where ramfold's memory is divided between its levels once and for all: the percent for compressed pages,
    /// and the other options.
    pub fn fixed_share(&self) -> Option<(f64, Vec<&str>)> {
        let Cache::Ramfold { options } = self else { return None };
        let share = options.iter().find_map(|option| {
            option.strip_prefix(SHARE_OPTION)?.trim_end_matches('%').parse().ok()
        })?;
        let others = options.iter().filter(|option| !option.starts_with(SHARE_OPTION));
        Some((share, others.map(String::as_str).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_keeps_the_files() {
        assert_eq!(Cache::named("page-cache").unwrap().fixed_share(), None);
        assert_eq!(Cache::named("disk").unwrap(), Cache::Disk);
        assert_eq!(Cache::named("ramfold").unwrap().fixed_share(), None);
        let cache = Cache::named("ramfold:codec=lz4:compressed-share=40%").unwrap();
        assert_eq!(cache.fixed_share(), Some((40.0, vec!["--codec=lz4"])));
        for bad in ["zram", "ramfold:lz4", "ramfold:memory=1G"] {
            assert!(Cache::named(bad).is_err(), "{bad} was taken");
        }
    }
}
