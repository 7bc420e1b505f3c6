//! Which parts of a disk are there.

use std::ops::ControlFlow;

use super::*;
use crate::Extent;

fn extents(disk: &Disk, offset: u64, bytes: u64) -> Vec<(u64, bool)> {
    let mut found = Vec::new();
    disk.extents(offset, bytes, &mut |Extent { bytes, is_allocated, is_zero }| {
        assert_eq!(is_zero, !is_allocated);
        found.push((bytes, is_allocated));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

#[test]
fn runs_are_joined() {
    let disk = Disk::new(config(MIB, 16 * MIB)).unwrap();
    assert_eq!(extents(&disk, 0, MIB), [(MIB, false)]);
    disk.put(60 * 4096, &[text(1), text(2), [3; PAGE]].concat()).unwrap();
    disk.put(63 * 4096 + 100, &[1; 4096]).unwrap();
    disk.put(70 * 4096, &[0; PAGE]).unwrap();
    let (start, end) = (60 * 4096, 65 * 4096);
    assert_eq!(extents(&disk, 0, MIB), [(start, false), (end - start, true), (MIB - end, false)]);
    assert_eq!(extents(&disk, start + 1000, 2000), [(2000, true)]);
    assert_eq!(extents(&disk, start - 1000, 2000), [(1000, false), (1000, true)]);
    assert_eq!(extents(&disk, 5, 0), []);
    disk.trim(61 * 4096, 2 * 4096 + 5, Durability::AtFlush).unwrap();
    assert_eq!(extents(&disk, start, 5 * 4096), [(4096, true), (8192, false), (8192, true)]);
    // It ends where it is told to.
    let mut calls = 0;
    disk.extents(0, MIB, &mut |_| {
        calls += 1;
        ControlFlow::Break(())
    })
    .unwrap();
    assert_eq!(calls, 1);
}
