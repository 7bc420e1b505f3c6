//! Where costs are kept from one time to the next.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Costs, Key};

/// What the file has.
#[derive(Serialize, Deserialize)]
struct Kept {
    key: Key,
    costs: Costs,
}

/// The file with what was measured of this machine: `$XDG_CACHE_HOME/ramfold/machine.json`. `None`
/// where no folder is known.
pub fn usual_file() -> Option<PathBuf> {
    super::folder_of("XDG_CACHE_HOME", ".cache").map(|folder| folder.join("machine.json"))
}

/// What is kept for this key; `None` where there is nothing, or it is damaged, or of another.
pub(super) fn load(file: &Path, key: &Key) -> Option<Costs> {
    let kept: Kept = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    (kept.key == *key && kept.costs.are_sound()).then_some(kept.costs)
}

/// Keeps it, for its owner alone.
pub(super) fn save(file: &Path, key: &Key, costs: &Costs) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let kept = Kept { key: key.clone(), costs: costs.clone() };
    let mut text = serde_json::to_vec_pretty(&kept)?;
    text.push(b'\n');
    // Mode 0600, and never half of it.
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(&text)?;
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_kept_is_found_by_its_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/machine.json");
        let (key, costs) = (Key::of_this_machine(), Costs::usual());
        assert_eq!(load(&file, &key), None);
        save(&file, &key, &costs).unwrap();
        assert_eq!(load(&file, &key), Some(costs.clone()));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let other = Key { processors: key.processors + 1, ..key.clone() };
        assert_eq!(load(&file, &other), None);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, &text[..text.len() / 2]).unwrap();
        assert_eq!(load(&file, &key), None);
        let mut unsound = costs;
        unsound.fault.wall_s.median = -1.0;
        save(&file, &key, &unsound).unwrap();
        assert_eq!(load(&file, &key), None);
    }
}
