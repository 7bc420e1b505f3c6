//! What paper 004 took from MediaBench for its Table III (adpcm, jpeg, mpeg2), with the encoders of
//! today.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::{Prepared, Settings, Workload};
use crate::content::random::{Random, mix};
use crate::machine::host::Host;
use crate::machine::interrupt;
use crate::machine::program::{Program, found_in_path};

/// Seconds of sound, and frames of film, for a scale of 1: some seconds of work.
const SOUND_SECONDS: f64 = 3600.0;
const FILM_FRAMES: f64 = 500.0;
/// Width of the picture.
const PICTURE_COLUMNS: u64 = 4096;
/// What cjpeg takes for each pixel when it optimises its tables: coefficients of two bytes, half of
/// the colour left out, and a little.
const BYTES_PER_PIXEL: u64 = 3;

/// `ffmpeg`: sound to IMA ADPCM.
pub(super) struct Adpcm;

/// `cjpeg`: a picture to a progressive JPEG.
pub(super) struct Jpeg;

/// `ffmpeg`: a film to MPEG-2.
pub(super) struct Mpeg2;

impl Workload for Adpcm {
    fn name(&self) -> &'static str {
        "adpcm"
    }

    fn about(&self) -> &'static str {
        "ffmpeg encodes an hour of noise as IMA ADPCM"
    }

    fn prepare(&self, _host: &Host, settings: &Settings) -> Result<Prepared> {
        let sound = format!(
            "anoisesrc=color=brown:seed={}:duration={}",
            settings.seed,
            SOUND_SECONDS * settings.scale
        );
        ffmpeg(self.name(), &sound, ["-c:a", "adpcm_ima_wav", "-f", "wav"])
    }
}

impl Workload for Mpeg2 {
    fn name(&self) -> &'static str {
        "mpeg2"
    }

    fn about(&self) -> &'static str {
        "ffmpeg encodes 500 frames of 2560 by 1440 as MPEG-2"
    }

    fn prepare(&self, _host: &Host, settings: &Settings) -> Result<Prepared> {
        let frames = (FILM_FRAMES * settings.scale).ceil();
        let film = format!("testsrc2=size=2560x1440:rate=25:duration={}", frames / 25.0);
        ffmpeg(self.name(), &film, ["-c:v", "mpeg2video", "-f", "mpeg2video"])
    }
}

fn ffmpeg(workload: &str, source: &str, output: [&str; 4]) -> Result<Prepared> {
    found_in_path("ffmpeg")
        .with_context(|| format!("the workload {workload} needs the command ffmpeg"))?;
    let command =
        ["ffmpeg", "-v", "error", "-nostdin", "-filter_threads", "1", "-f", "lavfi", "-i"]
            .into_iter()
            .chain([source, "-threads", "1", "-flags", "+bitexact", "-fflags", "+bitexact"])
            .chain(output)
            .chain(["-"]);
    let command = command.map(Into::into).collect();
    Ok(Prepared::whole(Program { command, environment: Vec::new() }))
}

impl Workload for Jpeg {
    fn name(&self) -> &'static str {
        "jpeg"
    }

    fn about(&self) -> &'static str {
        "cjpeg encodes a picture for which it needs about --size, progressively"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        found_in_path("cjpeg")
            .context("the workload jpeg needs the command cjpeg (libjpeg-turbo-progs)")?;
        let picture = host.scratch.join("picture.ppm");
        let rows = settings.size_bytes / BYTES_PER_PIXEL / PICTURE_COLUMNS;
        write_picture(&picture, PICTURE_COLUMNS, rows.clamp(1, 65_500), settings.seed)
            .with_context(|| format!("cannot write {}", picture.display()))?;
        // Without a limit of its own: it would write to a file behind it.
        let options = ["cjpeg", "-progressive", "-quality", "90", "-maxmemory", "4000000"];
        let mut command: Vec<OsString> = options.map(Into::into).to_vec();
        command.push(picture.into());
        Ok(Prepared::whole(Program { command, environment: Vec::new() }))
    }
}

/// Slow changes of colour with noise on them, in PPM.
fn write_picture(path: &Path, columns: u64, rows: u64, seed: u64) -> Result<()> {
    let mut random = Random::new(mix(seed));
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(path)?);
    write!(writer, "P6\n{columns} {rows}\n255\n")?;
    for row in 0..rows {
        interrupt::check()?;
        for column in 0..columns {
            let noise = random.word();
            let wave = ((row * row / 97 + column * 3) >> 4) as u8;
            let pixel =
                [row / 8, column / 16, row / 5 + column / 7].map(|part| part as u8 ^ wave >> 3);
            for (index, part) in pixel.into_iter().enumerate() {
                let noise = (noise >> (8 * index)) as u8 & 7;
                writer.write_all(&[part.saturating_add(noise)])?;
            }
        }
    }
    writer.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_repeats_and_has_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let make = |seed| {
            let path = folder.path().join("picture.ppm");
            write_picture(&path, 64, 10, seed).unwrap();
            std::fs::read(path).unwrap()
        };
        assert_eq!(make(1).len(), "P6\n64 10\n255\n".len() + 64 * 10 * 3);
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
    }
}
