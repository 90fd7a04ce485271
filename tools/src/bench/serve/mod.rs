//! `waterline bench --serve URL`: the latency and throughput of a server that speaks OpenAI's interface.

mod client;
mod load;
mod report;
mod requests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::error::{Error, Result};
use crate::provenance::Provenance;
use client::Server;
use load::Level;
use report::{Limits, LoadReport, Origin};
pub use report::{page, to_csv, to_markdown, to_text};
use requests::Requests;

/// Options for measuring servers.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Servers")]
pub struct LoadArgs {
    /// Measure a server that speaks OpenAI's interface instead of a model: its address, or the URL of its completions. Addresses
    /// get /v1/chat/completions. May be repeated to compare servers. MODEL is then the name in requests; by default the server's first.
    #[arg(
        long = "serve",
        value_name = "URL",
        conflicts_with_all = ["depth", "sessions", "ops", "compare", "threads", "chunk", "exact", "OpenArgs"]
    )]
    pub servers: Vec<String>,
    /// Numbers of clients, separated by commas. Each sends a request as soon as its last one was answered.
    #[arg(
        long,
        value_name = "LIST",
        default_value = "1",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u16).range(1..=1024),
        requires = "servers"
    )]
    concurrency: Vec<u16>,
    /// Requests per second, separated by commas, in place of --concurrency. They arrive at random (Poisson), whether or not earlier
    /// ones were answered.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = rate,
        requires = "servers",
        conflicts_with = "concurrency"
    )]
    rate: Vec<f64>,
    /// Number of requests for each number of clients or rate.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 32,
        value_parser = clap::value_parser!(u32).range(1..),
        requires = "servers"
    )]
    requests: u32,
    /// Send the requests in a file, in order and again from the start: a JSON body per line, such as {"messages": [...], "max_tokens": 64},
    /// with "prompt" for completions. Otherwise prompts of --prompt random words' tokens are answered by --gen tokens.
    #[arg(long, value_name = "FILE", requires = "servers")]
    bodies: Option<PathBuf>,
    /// Count the requests within limits in milliseconds, such as first:500,between:50,total:10000. They are the goodput.
    #[arg(long, value_name = "LIMITS", value_parser = Limits::parse, requires = "servers")]
    within: Option<Limits>,
    /// The API key that the servers expect.
    #[arg(
        long,
        value_name = "KEY",
        env = "WATERLINE_API_KEY",
        hide_env_values = true,
        requires = "servers"
    )]
    api_key: Option<String>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let is_possible = |rate: &f64| (0.001..=10_000.0).contains(rate);
    rate.filter(is_possible)
        .ok_or_else(|| format!("{text}: expected requests per second, 0.001 to 10000"))
}

impl LoadArgs {
    fn levels(&self) -> Vec<Level> {
        if self.rate.is_empty() {
            let clients = self.concurrency.iter();
            return clients
                .map(|&clients| Level::Clients(clients.into()))
                .collect();
        }
        self.rate.iter().map(|&rate| Level::Rate(rate)).collect()
    }
}

/// Measures the servers at each level, with prompts and answers of `lengths` tokens unless there is a file of requests.
pub fn measure(
    args: &LoadArgs,
    models: &[PathBuf],
    lengths: (usize, usize),
) -> Result<Vec<LoadReport>> {
    let model = match models {
        [] => None,
        [name] => Some(&**name),
        _ => return Err(Error::usage("--serve: expected one MODEL at most")),
    };
    let model = model.map(Path::to_string_lossy);
    let servers = args.servers.iter().map(|url| {
        let server = Server::new(url, model.as_deref(), args.api_key.as_deref())?;
        let requests = match &args.bodies {
            Some(path) => Requests::read(path)?,
            None => Requests::random(&server, lengths)?,
        };
        Ok((server, requests))
    });
    let servers = servers.collect::<Result<Vec<_>>>()?;
    let (levels, count) = (args.levels(), args.requests as usize);
    let bar = progress(levels.len() * servers.len() * count);
    let mut reports = Vec::new();
    for (index, level) in levels.into_iter().enumerate() {
        for (server, requests) in &servers {
            bar.set_message(format!("{} {level}", server.url()));
            let begun = Provenance::begin();
            let numbers = index * count..(index + 1) * count;
            let outcomes = load::run(level, numbers, |number, begun| {
                let sent = server.send(&requests.body(number), begun);
                bar.inc(1);
                sent
            });
            let origin = Origin {
                server: server.url().into(),
                model: server.model().into(),
                level,
                provenance: begun,
            };
            reports.push(LoadReport::new(origin, outcomes, args.within));
        }
    }
    bar.finish_and_clear();
    Ok(reports)
}

fn progress(requests: usize) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {bar:30} {pos} of {len} requests {eta:>4} left");
    let bar = ProgressBar::new(requests as u64)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
