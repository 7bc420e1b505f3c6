//! An allocator by the rules of the kernel's zsmalloc (Documentation/mm/zsmalloc.rst, Linux 6.18),
//! to tell what zram's objects cost: size classes 16 bytes apart, each cut from zspages of one to
//! eight pages, as many as leave the least at their end; classes whose zspages have as many pages
//! and objects are one. An object begins with 8 bytes that name its handle, of another 8 bytes.

use ramfold_codec::{PAGE_SIZE, Page};
use ramfold_store::{Allocator, Footprint};

const STEP_BYTES: usize = 16;
const OBJECT_BYTES_MIN: usize = 32;
const HANDLE_BYTES: usize = 8;
const PAGES_MAX: usize = 8;
/// struct zspage, and struct zpdesc is the page's own.
const ZSPAGE_SIZE: usize = 56;

/// Size classes and their zspages.
pub(super) struct Zsmalloc {
    classes: Vec<Class>,
    /// Handles stay what they are when objects move.
    places: Vec<Place>,
    vacant: Vec<u32>,
}

struct Class {
    object_bytes: usize,
    pages: usize,
    zspages: Vec<Option<Zspage>>,
    vacant: Vec<u32>,
}

struct Zspage {
    bytes: Box<[u8]>,
    /// The handle of each object, if it is in use.
    used: Vec<Option<u32>>,
    used_count: usize,
}

#[derive(Clone, Copy, Default)]
struct Place {
    class: u16,
    zspage: u32,
    slot: u16,
    len: u16,
}

/// The number of a place.
#[derive(Debug)]
pub(super) struct Handle(u32);

impl Class {
    fn slots(&self) -> usize {
        self.pages * PAGE_SIZE / self.object_bytes
    }

    /// A zspage with a free slot: a full one as nearly as can be.
    fn open(&mut self) -> u32 {
        let slots = self.slots();
        let fullest = (0..)
            .zip(&self.zspages)
            .filter_map(|(number, zspage)| Some((zspage.as_ref()?.used_count, number)))
            .filter(|&(used, _)| used < slots)
            .max();
        if let Some((_, number)) = fullest {
            return number;
        }
        let bytes = vec![0; self.pages * PAGE_SIZE].into();
        let zspage = Zspage { bytes, used: vec![None; slots], used_count: 0 };
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.zspages.push(None);
            self.zspages.len() as u32 - 1
        });
        self.zspages[number as usize] = Some(zspage);
        number
    }

    fn zspage(&mut self, number: u32) -> &mut Zspage {
        self.zspages[number as usize].as_mut().expect("a zspage in use")
    }

    fn take(&mut self, number: u32, handle: u32) -> u16 {
        let zspage = self.zspage(number);
        let slot = zspage.used.iter().position(Option::is_none).expect("a free slot");
        zspage.used[slot] = Some(handle);
        zspage.used_count += 1;
        slot as u16
    }

    fn give(&mut self, number: u32, slot: u16) {
        let zspage = self.zspage(number);
        zspage.used[usize::from(slot)] = None;
        zspage.used_count -= 1;
        if zspage.used_count == 0 {
            self.zspages[number as usize] = None;
            self.vacant.push(number);
        }
    }

    /// The bytes of a slot.
    fn range(&self, slot: u16) -> std::ops::Range<usize> {
        let start = usize::from(slot) * self.object_bytes;
        start..start + self.object_bytes
    }

    /// The bytes of an object of this length in a slot: behind its handle, or, where it fills the
    /// slot, from the start.
    fn payload(&self, slot: u16, len: usize) -> std::ops::Range<usize> {
        let start = self.range(slot).start;
        let start = if len + HANDLE_BYTES > PAGE_SIZE { start } else { start + HANDLE_BYTES };
        start..start + len
    }
}

/// How many pages leave the least behind the last object.
fn pages_for(object_bytes: usize) -> usize {
    if object_bytes.is_power_of_two() {
        return 1;
    }
    (1..=PAGES_MAX).min_by_key(|pages| pages * PAGE_SIZE % object_bytes).unwrap_or(1)
}

impl Default for Zsmalloc {
    fn default() -> Self {
        let mut classes: Vec<Class> = Vec::new();
        for object_bytes in (OBJECT_BYTES_MIN..PAGE_SIZE + 1).step_by(STEP_BYTES).rev() {
            let class = Class {
                object_bytes,
                pages: pages_for(object_bytes),
                zspages: Vec::new(),
                vacant: Vec::new(),
            };
            // From the largest on: what would be cut alike joins the larger one.
            let alike = classes.last().is_some_and(|larger| {
                (larger.pages, larger.slots()) == (class.pages, class.slots())
            });
            if !alike {
                classes.push(class);
            }
        }
        classes.reverse();
        Zsmalloc { classes, places: Vec::new(), vacant: Vec::new() }
    }
}

impl Allocator for Zsmalloc {
    type Handle = Handle;

    fn name(&self) -> &'static str {
        "zsmalloc"
    }

    fn put(&mut self, object: &[u8]) -> Option<Handle> {
        let need = (object.len() + HANDLE_BYTES).min(PAGE_SIZE);
        let class = self.classes.partition_point(|class| class.object_bytes < need);
        let handle = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let shape = &mut self.classes[class];
        let zspage = shape.open();
        let slot = shape.take(zspage, handle);
        let range = shape.payload(slot, object.len());
        shape.zspage(zspage).bytes[range].copy_from_slice(object);
        self.places[handle as usize] =
            Place { class: class as u16, zspage, slot, len: object.len() as u16 };
        Some(Handle(handle))
    }

    fn copy_out(&self, handle: &Handle, object: &mut Page) -> usize {
        let Place { class, zspage, slot, len } = self.places[handle.0 as usize];
        let (class, len) = (&self.classes[usize::from(class)], usize::from(len));
        let zspage = class.zspages[zspage as usize].as_ref().expect("a zspage in use");
        object[..len].copy_from_slice(&zspage.bytes[class.payload(slot, len)]);
        len
    }

    fn free(&mut self, handle: Handle) {
        let Place { class, zspage, slot, .. } = self.places[handle.0 as usize];
        self.classes[usize::from(class)].give(zspage, slot);
        self.vacant.push(handle.0);
    }

    /// The emptiest zspages of a class give their objects to the fullest, as long as one can be
    /// emptied.
    fn compact<'h>(&mut self, handles: impl Iterator<Item = &'h mut Handle>) -> u64 {
        drop(handles);
        let mut moved = 0;
        for class in &mut self.classes {
            let slots = class.slots();
            loop {
                let open = || {
                    let used = |(number, zspage): (u32, &Option<Zspage>)| {
                        Some((zspage.as_ref()?.used_count, number))
                    };
                    (0..).zip(&class.zspages).filter_map(used).filter(|&(used, _)| used < slots)
                };
                let room: usize = open().map(|(used, _)| slots - used).sum();
                let Some((used, emptiest)) = open().min() else { break };
                // Into the room of the others.
                if room - (slots - used) < used {
                    break;
                }
                for slot in 0..slots as u16 {
                    // With its last object it goes.
                    let Some(zspage) = &class.zspages[emptiest as usize] else { break };
                    let Some(handle) = zspage.used[usize::from(slot)] else { continue };
                    let full = |number: u32, zspage: &Zspage| {
                        number != emptiest && zspage.used_count < slots
                    };
                    let to = (0..)
                        .zip(&class.zspages)
                        .filter_map(|(number, zspage)| Some((number, zspage.as_ref()?)))
                        .filter(|&(number, zspage)| full(number, zspage))
                        .max_by_key(|(_, zspage)| zspage.used_count)
                        .map(|(number, _)| number)
                        .expect("room in another");
                    let from = class.range(slot);
                    let bytes = class.zspage(emptiest).bytes[from].to_vec();
                    let new = class.take(to, handle);
                    let range = class.range(new);
                    class.zspage(to).bytes[range].copy_from_slice(&bytes);
                    let place = &mut self.places[handle as usize];
                    (place.zspage, place.slot) = (to, new);
                    class.give(emptiest, slot);
                    moved += 1;
                }
            }
        }
        moved
    }

    fn footprint(&self) -> Footprint {
        let zspages = |class: &Class| class.zspages.iter().flatten().count();
        let pages: usize = self.classes.iter().map(|class| zspages(class) * class.pages).sum();
        let count: usize = self.classes.iter().map(zspages).sum();
        let handles = self.places.len() - self.vacant.len();
        Footprint {
            allocated_bytes: (pages * PAGE_SIZE) as u64,
            metadata_bytes: (count * ZSPAGE_SIZE + handles * HANDLE_BYTES) as u64,
        }
    }
}
