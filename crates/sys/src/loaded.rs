//! The objects that the dynamic loader has mapped into this process, and where their symbols are.
//!
//! Asking the loader (dlsym) would need a symbol of it, and would return the first function of the
//! name, which may be a sanitizer's or the program's own. So the list that the loader keeps for
//! debuggers (`r_debug` of link.h) is read, and each object's own hash table.

use core::ffi::{CStr, c_char};
use core::ops::Range;

use crate::Errno;
use crate::proc::read_file;

const AT_PHDR: u64 = 3;
const AT_PHNUM: u64 = 5;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_SONAME: u64 = 14;
const DT_DEBUG: u64 = 21;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Symbols that have code or data of their own.
const STT_OBJECT: u8 = 1;
const STT_FUNC: u8 = 2;

#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

#[repr(C)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// The start of `struct r_debug`.
#[repr(C)]
struct Debug {
    version: i32,
    first: *const LinkMap,
}

/// The start of `struct link_map`.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

#[repr(C)]
struct SymbolEntry {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    bytes: u64,
}

/// A program or library in memory.
#[derive(Clone, Copy)]
pub struct Object {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
}

/// The objects, the program first, in the order in which the loader looks for symbols. None for a
/// program without a loader.
///
/// # Errors
/// What open(2) and read(2) say of `/proc/self/auxv`.
///
/// # Safety
/// No object may be loaded or unloaded meanwhile.
pub unsafe fn objects() -> Result<impl Iterator<Item = Object>, Errno> {
    let mut vector = [0; 1024];
    let length = read_file(c"/proc/self/auxv", &mut vector)?;
    let (words, _) = vector[..length].as_chunks::<8>();
    let entry = |kind: u64| {
        let mut entries = words.as_chunks::<2>().0.iter();
        entries.find(|[key, _]| u64::from_ne_bytes(*key) == kind)
    };
    let value = |kind: u64| entry(kind).map_or(0, |[_, value]| u64::from_ne_bytes(*value));
    let (start, count) = (value(AT_PHDR), value(AT_PHNUM) as usize);
    let headers: &[ProgramHeader] = match start {
        0 => &[],
        // SAFETY: where the kernel has put the headers of this program, which stay.
        start => unsafe { core::slice::from_raw_parts(start as *const ProgramHeader, count) },
    };
    let find = |kind| headers.iter().find(|header| header.kind == kind);
    let base = find(PT_PHDR).map_or(0, |own| (start - own.address) as usize);
    let program = find(PT_DYNAMIC)
        .map(|header| (base + header.address as usize) as *const Dynamic)
        .map(|dynamic| Object { base, name: core::ptr::null(), dynamic });
    let debug = program.and_then(|program| program.dynamic_value(DT_DEBUG)).unwrap_or(0);
    // SAFETY: the loader has put its structure's address there, or nothing.
    let first = unsafe { (debug as *const Debug).as_ref() }.map_or(core::ptr::null(), |d| d.first);
    let mut next = first;
    Ok(core::iter::from_fn(move || {
        // SAFETY: the list is as the loader made it, which does not change it meanwhile.
        let map = unsafe { next.as_ref() }?;
        next = map.next;
        Some(Object { base: map.base, name: map.name, dynamic: map.dynamic })
    }))
}

impl Object {
    /// Where it begins in memory.
    pub fn base(&self) -> usize {
        self.base
    }

    /// The name that the loader was asked for, or the path that it found; empty for the program.
    pub fn name(&self) -> &'static CStr {
        // SAFETY: the loader's string, which stays as long as the object; null for what it has not
        // told.
        unsafe { self.name.as_ref().map_or(c"", |name| CStr::from_ptr(name)) }
    }

    fn dynamic_value(&self, tag: u64) -> Option<usize> {
        let mut at = self.dynamic;
        loop {
            // SAFETY: not behind the entry that ends the table; a null pointer has none.
            let entry = unsafe { at.as_ref() }?;
            if entry.tag == DT_NULL {
                return None;
            }
            if entry.tag == tag {
                return Some(entry.value as usize);
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
    }

    /// An address in the table: glibc has made it absolute, others leave it relative.
    fn address_of(&self, tag: u64) -> Option<usize> {
        let value = self.dynamic_value(tag)?;
        Some(if value < self.base { value + self.base } else { value })
    }

    /// The name by which others depend on it, `libc.so.6`.
    pub fn soname(&self) -> Option<&CStr> {
        self.text(self.dynamic_value(DT_SONAME)?)
    }

    fn text(&self, offset: usize) -> Option<&CStr> {
        let strings = self.address_of(DT_STRTAB)?;
        // SAFETY: a string of the object's table, which stays as long as the object.
        Some(unsafe { CStr::from_ptr((strings + offset) as *const c_char) })
    }

    /// Addresses of a function or variable that the object defines.
    pub fn symbol(&self, name: &CStr) -> Option<Range<usize>> {
        let symbols = self.address_of(DT_SYMTAB)? as *const SymbolEntry;
        let table = self.address_of(DT_GNU_HASH)? as *const u32;
        // SAFETY: the head of the table, and what it says is behind it.
        let [buckets, first_hashed, bloom_words, _] = unsafe { table.cast::<[u32; 4]>().read() };
        if buckets == 0 {
            return None;
        }
        let hash = gnu_hash(name);
        // SAFETY: the filter's words have 8 bytes each, the buckets and chains 4.
        let (bucket, chains) = unsafe {
            let bucket_list = table.add(4 + 2 * bloom_words as usize);
            (bucket_list.add((hash % buckets) as usize).read(), bucket_list.add(buckets as usize))
        };
        let mut index = bucket;
        while index >= first_hashed {
            // SAFETY: chains end with an odd entry; each entry has its symbol.
            let (chained, entry) = unsafe {
                (chains.add((index - first_hashed) as usize).read(), &*symbols.add(index as usize))
            };
            let is_defined = entry.section != 0 && matches!(entry.info & 15, STT_OBJECT | STT_FUNC);
            if chained | 1 == hash | 1 && is_defined && self.text(entry.name as usize) == Some(name)
            {
                let start = self.base + entry.value as usize;
                return Some(start..start + entry.bytes as usize);
            }
            if chained & 1 == 1 {
                break;
            }
            index += 1;
        }
        None
    }
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes()
        .iter()
        .fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c_library() -> Object {
        // SAFETY: no test loads anything.
        let mut objects = unsafe { objects() }.unwrap();
        objects
            .find(|object| {
                object.soname().is_some_and(|name| name.to_bytes().starts_with(b"libc."))
            })
            .unwrap()
    }

    #[test]
    fn functions_of_the_c_library_are_where_the_program_calls_them() {
        let library = c_library();
        for (name, address) in [
            (c"malloc", libc::malloc as *const () as usize),
            (c"getenv", libc::getenv as *const () as usize),
            (c"munmap", libc::munmap as *const () as usize),
            (c"syscall", libc::syscall as *const () as usize),
        ] {
            let found = library.symbol(name).unwrap();
            assert_eq!(found.start, address, "{name:?}");
            assert!((4..4096).contains(&found.len()), "{name:?}: {found:?}");
        }
    }

    #[test]
    fn what_an_object_only_uses_or_does_not_know_is_not_found() {
        assert_eq!(c_library().symbol(c"no_such_function_anywhere"), None);
        // SAFETY: no test loads anything.
        let program = unsafe { objects() }.unwrap().next().unwrap();
        assert_eq!(program.symbol(c"munmap"), None);
    }
}
