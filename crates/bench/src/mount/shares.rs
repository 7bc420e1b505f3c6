//! Throughput and what is read from the disk against the lower level's part of the memory, as curves.

use anyhow::{Result, bail};

use crate::plot::Panel;

const SETTING: &str = "compressed-share=";

/// What a job came to with one peer.
pub struct Measured<'a> {
    pub peer: &'a str,
    pub bytes_per_s: f64,
    pub disk_bytes: f64,
}

/// A peer's name without its share, and the share in percent, if it has one.
fn share_of(peer: &str) -> (String, Option<f64>) {
    let (shares, others): (Vec<&str>, Vec<&str>) =
        peer.split(':').partition(|part| part.starts_with(SETTING));
    let percent = |text: &&str| text.strip_prefix(SETTING)?.strip_suffix('%')?.parse().ok();
    (others.join(":"), shares.last().and_then(percent))
}

/// # Errors
/// When there is no curve among the peers: those that differ in their shares alone.
pub fn check(peers: &[String]) -> Result<()> {
    let mut shares: Vec<_> = peers
        .iter()
        .map(|peer| share_of(peer))
        .filter_map(|(name, share)| Some((name, share?)))
        .collect();
    shares.sort_by(|one, other| one.partial_cmp(other).unwrap_or(std::cmp::Ordering::Equal));
    shares.dedup();
    if !shares.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        bail!(
            "--plot draws throughput against the lower level's share: name a peer with several, as in \
             --peer page-cache,ramfold:compressed-share=0%,ramfold:compressed-share=40%,ramfold:compressed-share=80%"
        );
    }
    Ok(())
}

/// Throughput and bytes read from the disk by one job. Who has no share is a level line.
pub fn panels(job: &str, measured: &[Measured<'_>]) -> [Panel; 2] {
    let panel = |what: &str, y, of: fn(&Measured<'_>) -> f64| Panel {
        title: format!("{job}: {what}"),
        x: "lower level, percent of the memory",
        y,
        logarithmic: false,
        curves: curves(measured, of),
    };
    [
        panel("throughput", "MB/s", |measured| measured.bytes_per_s / 1e6),
        panel("read from the disk", "MB", |measured| measured.disk_bytes / 1e6),
    ]
}

fn curves(
    measured: &[Measured<'_>],
    of: fn(&Measured<'_>) -> f64,
) -> Vec<(String, Vec<(f64, f64)>)> {
    let shares = || measured.iter().filter_map(|measured| share_of(measured.peer).1);
    let (least, most) = (shares().fold(100.0, f64::min), shares().fold(0.0, f64::max));
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for measured in measured {
        let (mut name, share) = share_of(measured.peer);
        let value = of(measured);
        let points = match share {
            Some(share) => vec![(share, value)],
            None => {
                if name.starts_with("ramfold") {
                    name += ", its own choice";
                }
                vec![(least, value), (most, value)]
            }
        };
        match curves.iter_mut().find(|(curve, _)| *curve == name) {
            Some((_, curve)) => curve.extend(points),
            None => curves.push((name, points)),
        }
    }
    for (_, points) in &mut curves {
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    curves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_peer_with_several_shares_is_a_curve() {
        let peers = [
            ("page-cache", 10e6),
            ("ramfold:compressed-share=80%:codec=lz4", 40e6),
            ("ramfold:codec=lz4:compressed-share=20%", 30e6),
            ("ramfold", 50e6),
        ];
        let measured =
            peers.map(|(peer, bytes_per_s)| Measured { peer, bytes_per_s, disk_bytes: 1e6 });
        let [throughput, disk] = panels("random", &measured);
        let expected = [
            ("page-cache".to_owned(), vec![(20.0, 10.0), (80.0, 10.0)]),
            ("ramfold:codec=lz4".to_owned(), vec![(20.0, 30.0), (80.0, 40.0)]),
            ("ramfold, its own choice".to_owned(), vec![(20.0, 50.0), (80.0, 50.0)]),
        ];
        assert_eq!(throughput.curves, expected);
        assert_eq!(throughput.title, "random: throughput");
        assert_eq!(disk.curves[1].1, [(20.0, 1.0), (80.0, 1.0)]);
    }

    #[test]
    fn without_several_shares_there_is_nothing_to_draw() {
        for names in [
            &["page-cache", "ramfold"][..],
            &["ramfold:compressed-share=10%", "ramfold"],
            &["ramfold:compressed-share=10%", "ramfold:compressed-share=10%"],
            &["ramfold:compressed-share=10%", "ramfold:codec=lz4:compressed-share=20%"],
        ] {
            let refusal = check(&named(names)).unwrap_err().to_string();
            assert!(refusal.contains("--peer page-cache,ramfold:compressed-share=0%"), "{refusal}");
        }
        check(&named(&["ramfold:compressed-share=0%", "x", "ramfold:compressed-share=80%"]))
            .unwrap();
    }
}
