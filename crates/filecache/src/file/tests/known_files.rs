//! Which files are remembered.

use super::*;

#[test]
fn files_without_names_and_too_many_files_are_forgotten() {
    let cache = FileCache::new(config(16 << 20), None).unwrap();
    let file = TestFile::new(&cache, 1, content_of(1 << 20, 3));
    rest();
    file.check(0, 1 << 20);
    cache.settle();
    assert!(cache.view().statistics().pages_stored > 0);
    file.cached.note_nameless();
    cache.file(FileKey { device: 1, inode: 2, generation: 0 });
    // It is in use.
    assert!(cache.view().statistics().pages_stored > 0);
    file.check(0, 1 << 20);
    cache.settle();
    drop(file);
    cache.file(FileKey { device: 1, inode: 2, generation: 0 });
    assert_eq!(cache.view().statistics().pages_stored, 0);

    let used = TestFile::new(&cache, 3, content_of(100_000, 4));
    rest();
    used.check(0, 100_000);
    cache.settle();
    for inode in 10..20_000 {
        cache.file(FileKey { device: 1, inode, generation: 0 });
    }
    assert!(cache.shared.known.len() <= cache.shared.known.max());
    let before = cache.statistics().pool_hit_pages;
    used.check(0, 100_000);
    assert!(cache.statistics().pool_hit_pages > before);
}
