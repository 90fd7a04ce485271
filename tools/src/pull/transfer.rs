//! The download of one file: it goes on where it ended, and ends if nothing comes any more.

use std::fs;
use std::io::{IsTerminal, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY};
use ureq::Body;
use ureq::http::Response;

use super::client::Client;
use super::hub::File;
use crate::error::{Error, Result};
use crate::sha256;
use crate::text::shown_line;

/// Consecutive connections that bring nothing new, after which a download fails.
const ATTEMPTS: usize = 5;
/// Time without anything new, after which a download fails.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that must come in [`PATIENCE`].
const LEAST: u64 = 4096;
/// Downloads from the beginning, where the hub ignores ranges or sends other bytes than listed.
const BEGINNINGS: usize = 3;

/// Downloads the missing part of a file of `size` bytes to `part`. Connects again after a connection that ends early.
pub fn complete(client: &Client, url: &str, file: &File, size: u64, part: &Path) -> Result<()> {
    let io = |error| Error::io(part, error);
    let mut out = fs::OpenOptions::new();
    let out = out.create(true).append(true).read(true).open(part);
    let mut out = out.map_err(io)?;
    let bar = bar(file, size);
    let (mut attempts, mut beginnings) = (ATTEMPTS, BEGINNINGS);
    let mut most = out.seek(SeekFrom::End(0)).map_err(io)?;
    let mut last = Instant::now();
    loop {
        let mut have = out.seek(SeekFrom::End(0)).map_err(io)?;
        if have == size {
            break;
        }
        // A part longer than the file is not its beginning.
        have = if have > size { 0 } else { have };
        let outcome = client.get(url, have).and_then(|response| {
            if !continues(&response, have) {
                if have > 0 && beginnings == 0 {
                    let reason = "the hub always sends the file from its beginning";
                    return Err(client.failed(url, reason));
                }
                beginnings = beginnings.saturating_sub(usize::from(have > 0));
                have = 0;
            }
            if have == 0 {
                out.set_len(0).map_err(io)?;
            }
            bar.set_position(have);
            let mut body = response.into_body().into_reader().take(size - have + 1);
            copy(&mut body, &mut out, &bar).map_err(io)
        });
        let now = out.seek(SeekFrom::End(0)).map_err(io)?;
        if now > size {
            let reason = format!("found more than the {size} bytes of its listing");
            let _ = fs::remove_file(part);
            return Err(client.failed(url, &reason));
        }
        if now == size {
            break;
        }
        if now > most {
            (most, attempts, last) = (now, ATTEMPTS, Instant::now());
        } else {
            attempts -= 1;
        }
        if attempts == 0 || beginnings == 0 && outcome.is_err() || last.elapsed() > PATIENCE {
            outcome?;
            let reason = format!("found {now} of {size} bytes");
            return Err(client.failed(url, &reason));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    bar.finish_and_clear();
    Ok(())
}

/// Whether a response begins at byte `have`.
fn continues(response: &Response<Body>, have: u64) -> bool {
    let range = response.headers().get("content-range");
    let range = range.and_then(|range| range.to_str().ok());
    let starts = range.is_none_or(|range| range.starts_with(&format!("bytes {have}-")));
    have == 0 || response.status() == 206 && starts
}

/// Copies data until the connection ends, early or not, or hardly brings anything.
fn copy(body: &mut impl Read, out: &mut fs::File, bar: &ProgressBar) -> std::io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    let (mut since, mut count) = (Instant::now(), 0);
    while let Ok(read @ 1..) = body.read(&mut buffer) {
        out.write_all(&buffer[..read])?;
        bar.inc(read as u64);
        count += read as u64;
        if since.elapsed() > PATIENCE {
            if count < LEAST {
                break;
            }
            (since, count) = (Instant::now(), 0);
        }
    }
    Ok(())
}

/// Checks the hash that the hub lists for a complete file: SHA-256 of a large file, git's of a small one.
pub fn check(file: &File, path: &Path) -> Result<()> {
    let (kind, found) = match file.blob.len() {
        64 => ("SHA-256", sha256::of_files(&[path])?),
        _ => ("git's hash", git_hash(path, &file.blob)?),
    };
    if found == file.blob {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{}: {kind}: found {found}, expected {}; it was not kept",
        shown_line(&file.name, usize::MAX),
        file.blob
    )))
}

/// The hash of a file as a blob of git, SHA-1 over a header and the contents; without the header if `expected` is that.
fn git_hash(path: &Path, expected: &str) -> Result<String> {
    let bytes = fs::read(path).map_err(|error| Error::io(path, error))?;
    let hash = |header: &[u8]| {
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(header);
        context.update(&bytes);
        sha256::digits(context.finish().as_ref())
    };
    // Mirrors that are not built on git list the plain hash.
    let plain = hash(b"");
    if plain == expected {
        return Ok(plain);
    }
    Ok(hash(format!("blob {}\0", bytes.len()).as_bytes()))
}

fn bar(file: &File, size: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    let style = ProgressStyle::with_template(style);
    let bar = ProgressBar::new(size);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(shown_line(&file.name, 60));
    bar
}
