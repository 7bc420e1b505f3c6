//! Experiment.
use ramfold_launch::{Launch, Size};
use std::path::Path;
fn main() {
    let mut args = std::env::args().skip(1);
    let record = args.next().unwrap();
    let ppm: u64 = args.next().unwrap().parse().unwrap();
    let command: Vec<String> = args.collect();
    let mut launch = Launch::new(&command[0]);
    launch.args(&command[1..]).adopt_orphans();
    if let Ok(memory) = std::env::var("MEM") {
        launch.memory(memory.parse::<u64>().map(Size::Bytes).unwrap());
    }
    let (o, ended) =
        ramfold_advise::program::observe(&mut launch, command, ppm, |m| eprintln!("{m}"), |_| ())
            .unwrap();
    eprintln!(
        "{ended:?} {:?} need {} MiB one_in {} events {} blocks {} sizes {} {:?}",
        o.run,
        o.need_bytes >> 20,
        o.one_in,
        o.events.len(),
        o.contents.blocks.len(),
        o.sizes.len(),
        o.not_seen
    );
    use ramfold_trace::recorded::What;
    let n = |f: fn(&What) -> bool| o.events.iter().filter(|e| f(&e.what)).count();
    eprintln!(
        "touched {} appeared {} gone {} untouched {} ended {}",
        n(|w| matches!(w, What::Touched { .. })),
        n(|w| *w == What::Appeared),
        n(|w| *w == What::Gone),
        n(|w| matches!(w, What::Untouched { .. })),
        n(|w| *w == What::Ended)
    );
    if record != "-" {
        ramfold_advise::observation::file::save(Path::new(&record), &o).unwrap();
    }
}
