//! Redis under redis-benchmark: a child of the harness starts the server, fills it, runs
//! redis-benchmark, and asks the server for a digest of its contents.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ramfold_codec::PAGE_SIZE;

use super::{ChildOptions, ChildReport, PhaseSeconds, Prepared, Settings, Timing, Workload};
use crate::content::heap_pages::PageSource;
use crate::machine::host::Host;
use crate::machine::program::found_in_path;
use crate::machine::wait;

const REDIS: &str = "redis";
/// Bytes of a value.
const VALUE_BYTES: usize = 1024;
/// What the server takes for each.
const BYTES_PER_VALUE: u64 = 1280;
/// Requests for each value.
const REQUESTS_PER_VALUE: f64 = 4.0;
/// Values sent before the answers are read.
const BATCH: usize = 256;
/// How long the server may take to start, or to stop.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Redis;

impl Workload for Redis {
    fn name(&self) -> &'static str {
        REDIS
    }

    fn about(&self) -> &'static str {
        "redis-benchmark gets random values of 1 KiB from a redis-server of --size"
    }

    fn prepare(&self, host: &Host, settings: &Settings) -> Result<Prepared> {
        for command in ["redis-server", "redis-benchmark"] {
            found_in_path(command)
                .with_context(|| format!("the workload redis needs the command {command}"))?;
        }
        let values = settings.size_bytes / BYTES_PER_VALUE;
        let requests = values as f64 * REQUESTS_PER_VALUE * settings.scale;
        Ok(Prepared::synthetic(host, settings, REDIS, requests, Timing::Phase))
    }

    fn run(&self, options: &ChildOptions) -> Result<ChildReport> {
        run(options)
    }
}

/// A server that ends with its owner.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, or nothing can be done about it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The started process.
fn run(options: &ChildOptions) -> Result<ChildReport> {
    let values = (options.size_bytes / BYTES_PER_VALUE).max(1);
    let requests = options.operations((values as f64 * REQUESTS_PER_VALUE) as u64)?;
    let source = options.page_source()?;
    let folder = tempfile::tempdir().context("cannot make a folder for redis's socket")?;
    let socket = folder.path().join("redis.sock");
    let start = Instant::now();
    let server = Server(
        Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .args(["--enable-debug-command", "yes", "--unixsocketperm", "700", "--unixsocket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start redis-server")?,
    );
    let mut client = Client::connect(&socket)?;
    fill(&mut client, values, &source)?;
    let filled = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let ended = Command::new("redis-benchmark")
        .arg("-s")
        .arg(&socket)
        .args(["-q", "-t", "get", "-r", &values.to_string(), "-n", &requests.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("cannot start redis-benchmark")?;
    ensure!(ended.success(), "redis-benchmark ended with {ended}");
    let measured = start.elapsed().as_secs_f64();

    let start = Instant::now();
    let hash = client.ask(&["DEBUG", "DIGEST"])?;
    ensure!(hash.len() == 40, "redis-server says of its digest: {hash}");
    drop(server);
    let verify = start.elapsed().as_secs_f64();
    let seconds = PhaseSeconds { fill: filled, warm_up: 0.0, measured, verify };
    Ok(options.report(seconds, requests, hash))
}

/// Gives the server the values that redis-benchmark asks for.
fn fill(client: &mut Client, values: u64, source: &PageSource) -> Result<()> {
    let mut waiting = 0;
    for value in 0..values {
        let place = value as usize * VALUE_BYTES;
        let page = source.page(place / PAGE_SIZE)?;
        let bytes = &page.0[place % PAGE_SIZE..][..VALUE_BYTES];
        client.send(&[b"SET", format!("key:{value:012}").as_bytes(), bytes])?;
        waiting += 1;
        if waiting == BATCH || value + 1 == values {
            for _ in 0..std::mem::take(&mut waiting) {
                let answer = client.answer()?;
                ensure!(answer == "OK", "redis-server does not take a value: {answer}");
            }
        }
    }
    Ok(())
}

/// As much of redis's protocol as is needed here: requests of strings, answers in a line.
struct Client {
    requests: BufWriter<UnixStream>,
    answers: BufReader<UnixStream>,
}

impl Client {
    /// Connects once the server is there.
    fn connect(socket: &Path) -> Result<Client> {
        let stream = wait::until(PATIENCE, || {
            Ok(UnixStream::connect(socket).context("redis-server does not answer"))
        })?;
        let answers = BufReader::new(stream.try_clone().context("cannot copy a socket")?);
        Ok(Client { requests: BufWriter::new(stream), answers })
    }

    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        let mut send = || -> std::io::Result<()> {
            write!(self.requests, "*{}\r\n", words.len())?;
            for word in words {
                write!(self.requests, "${}\r\n", word.len())?;
                self.requests.write_all(word)?;
                self.requests.write_all(b"\r\n")?;
            }
            Ok(())
        };
        send().context("cannot write to redis-server")
    }

    /// A simple string, or an error as an error.
    fn answer(&mut self) -> Result<String> {
        self.requests.flush().context("cannot write to redis-server")?;
        let mut line = String::new();
        // An answer in a line is short; anything else would not end.
        let read = self.answers.by_ref().take(1 << 10).read_line(&mut line);
        read.context("cannot read from redis-server")?;
        match line.trim_end().split_at_checked(1) {
            Some(("+", answer)) => Ok(answer.to_owned()),
            _ => bail!("redis-server answers '{}'", line.trim_end()),
        }
    }

    fn ask(&mut self, words: &[&str]) -> Result<String> {
        self.send(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())?;
        self.answer()
    }
}

#[cfg(test)]
mod tests {
    use super::super::child::Quota;
    use super::*;

    #[test]
    fn it_asks_for_what_it_filled_in() {
        if found_in_path("redis-server").is_none() {
            println!("no redis-server: not tested");
            return;
        }
        let options = |seed| ChildOptions {
            quota: Some(Quota::Accesses(500)),
            ..ChildOptions::small(REDIS, seed)
        };
        let report = run(&options(1)).unwrap();
        assert_eq!(report.access_count, 500);
        assert_eq!(report.hash, run(&options(1)).unwrap().hash);
        assert_ne!(report.hash, run(&options(2)).unwrap().hash);
    }
}
