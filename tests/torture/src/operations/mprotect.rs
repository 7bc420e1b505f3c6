//! mprotect(2): access that is refused, and code in tortured memory.

use super::{Operation, Outcome, Skip, Turn, operation};
use crate::errno::Errno;
use crate::memory::{PAGE, Span};
use crate::touch::{self, Refusal};
use crate::{current, fail};

pub(super) const OPERATIONS: &[Operation] = &[
    operation("mprotect-read", 5, "read-only pages refuse stores and keep their bytes", read),
    operation("mprotect-none", 5, "inaccessible pages refuse access and keep their bytes", none),
    operation("mprotect-execute", 3, "code written to a region runs", execute),
];

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
/// si_code of SIGSEGV when the mapping is there and its protection forbids the access.
const SEGV_ACCERR: i32 = 2;

fn mprotect(span: Span<'_>, protection: i32) -> Result<(), Errno> {
    // SAFETY: the span is the caller's, who undoes this before anybody uses the memory.
    match unsafe { libc::mprotect(span.void(), span.bytes(), protection) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

fn protect(span: Span<'_>, protection: i32) {
    if let Err(errno) = mprotect(span, protection) {
        fail!("mprotect of {} pages to {protection} gave {errno}", span.pages());
    }
}

fn expect_refusal<T>(result: Result<T, Refusal>, address: usize, what: &str) {
    current::beat();
    let expected = Refusal { signal: libc::SIGSEGV, code: SEGV_ACCERR, address };
    match result {
        Ok(_) => fail!("a {what} at {address:#x} was not refused in spite of its protection"),
        Err(refusal) if refusal == expected => {}
        Err(Refusal { signal, code, address: told }) => fail!(
            "a {what} at {address:#x} was refused by signal {signal} code {code} for address \
             {told:#x}, not by SIGSEGV for its protection"
        ),
    }
}

fn read(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 200);
    region.split();
    region.reshape(|region| {
        protect(region.span(first, pages), libc::PROT_READ);
        for _ in 0..turn.rng.between(1, 20) {
            let page = first + turn.rng.below(pages);
            if turn.rng.percent(50) {
                region.check(page, 1);
            }
            let address = region.span(page, 1).address() + turn.rng.below(PAGE);
            // SAFETY: the store must be refused; if not, the run ends here.
            expect_refusal(unsafe { touch::store(address, 1) }, address, "store");
            region.check(page, 1);
        }
        protect(region.span(first, pages), READ_WRITE);
    });
    region.check(first, pages);
    region.write_full(first + turn.rng.below(pages));
    region.check(first, pages);
    Ok(())
}

fn none(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 200);
    region.split();
    region.reshape(|region| {
        protect(region.span(first, pages), libc::PROT_NONE);
        for _ in 0..turn.rng.between(1, 20) {
            let page = first + turn.rng.below(pages);
            let address = region.span(page, 1).address() + turn.rng.below(PAGE);
            expect_refusal(touch::load(address), address, "load");
            // SAFETY: the store must be refused; if not, the run ends here.
            expect_refusal(unsafe { touch::store(address, 1) }, address, "store");
        }
        if turn.rng.percent(30) {
            std::thread::sleep(std::time::Duration::from_millis(3));
        }
        protect(region.span(first, pages), READ_WRITE);
    });
    region.check(first, pages);
    region.write_full(first + turn.rng.below(pages));
    region.check(first, pages);
    Ok(())
}

fn execute(turn: &mut Turn<'_>) -> Outcome {
    let mut region = turn.region();
    let (first, pages) = turn.range(&region, 64);
    region.split();
    let outcome = region.reshape(|region| {
        let executable = READ_WRITE | libc::PROT_EXEC;
        if let Err(errno) = mprotect(region.span(first, pages), executable) {
            return Err(Skip::errno("mprotect to executable", errno));
        }
        region.check(first, pages);
        for page in 0..pages {
            let value = turn.rng.word() as u32;
            run_code(region.span(first + page, 1), value);
            region.write_full(first + page);
        }
        protect(region.span(first, pages), READ_WRITE);
        Ok(())
    });
    region.check(first, pages);
    outcome
}

/// Writes a function to the page that returns `value`, and calls it.
#[cfg(target_arch = "x86_64")]
fn run_code(page: Span<'_>, value: u32) {
    let mut code = [0xb8, 0, 0, 0, 0, 0xc3]; // mov eax, value; ret
    code[1..5].copy_from_slice(&value.to_le_bytes());
    page.part(64, code.len()).store(&code);
    current::beat();
    // SAFETY: the page is executable, and the bytes are a function of this type.
    let found = unsafe {
        let function: extern "C" fn() -> u32 =
            std::mem::transmute(page.part(64, code.len()).pointer());
        function()
    };
    if found != value {
        fail!("code at {:#x} returned {found:#x} instead of {value:#x}", page.address() + 64);
    }
}

/// Other machines need their instruction caches told, so only the protection is tried there.
#[cfg(not(target_arch = "x86_64"))]
fn run_code(page: Span<'_>, _value: u32) {
    page.touch();
    current::beat();
}
