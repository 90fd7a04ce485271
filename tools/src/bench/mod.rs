//! `waterline bench`: latency, speed and memory at chosen positions.

mod bandwidth;
mod compare;
mod measure;
mod page;
mod phases;
mod report;
mod statistics;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::builder::RangedU64ValueParser;
use waterline::SamplerParams;

use crate::builtin::open_model;
use crate::error::{Error, Result};
use crate::interrupt::on_interrupt;
use crate::machine::Machine;
use crate::page::is_picture;
use crate::session::SessionArgs;
use crate::write_model::check_output;
use measure::Plan;
use report::Report;
pub use report::transformer_bytes_per_token;

/// Measure latency, speed and memory.
///
/// The prompt is read up to three times from an empty state (median): its speed, and the time to the first token. Then
/// --depth many random tokens are read, and a copy of the state is kept at each depth. At last the copies take turns to
/// generate 16 tokens each, most probable ones, until each has generated --gen: what the machine does besides meets all depths alike. (Copies of
/// more than 1 GiB in all are not kept; each depth is timed when it is reached instead.) Each turn begins with one token
/// that is not timed. Between the turns as many threads read a buffer of four times the last cache, and nothing else: the
/// median of these passes is the bandwidth that the bytes per token are compared with. Resident memory is that of the
/// process without this buffer. Percentiles are nearest ranks; jitter is the mean difference of successive times.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = count())]
    prompt: usize,
    /// Tokens to generate at each depth.
    #[arg(long = "gen", value_name = "N", default_value_t = 256, value_parser = count())]
    generate: usize,
    /// Positions at which to generate, by commas; every token before them is read.
    #[arg(long, value_name = "LIST", default_value = "0,1024,4096", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(..=1 << 40))]
    depth: Vec<usize>,
    /// Tell where the time of a step goes on a GPU, behind the table.
    #[arg(long)]
    phases: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Compare two results that --json has written, and measure nothing.
    #[arg(long, num_args = 2, value_names = ["A.json", "B.json"], conflicts_with_all = ["model", "json", "csv", "md", "html"])]
    compare: Option<Vec<PathBuf>>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Where to put the result besides the terminal. For each of them - is standard output, instead of the table.
#[derive(clap::Args)]
struct Outputs {
    /// Write everything, the time of every token too, as JSON.
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write a line for each depth.
    #[arg(long, value_name = "F")]
    csv: Option<PathBuf>,
    /// Write the tables as Markdown.
    #[arg(long, value_name = "F")]
    md: Option<PathBuf>,
    /// Write a page with plots of latency and memory; it needs no other file. A name that ends in .svg gives the plots alone.
    #[arg(long, value_name = "F")]
    html: Option<PathBuf>,
}

fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=1 << 30)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if let Some([a, b]) = args.compare.as_deref() {
        print(&compare::compare(a, b)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    args.outputs.check()?;
    let (report, phases) = measure(args)?;
    args.outputs.write(&report)?;
    if args.phases {
        let none = "a step has no phases here: it runs on the CPU, or as a recorded graph\n";
        print(phases.as_deref().unwrap_or(none))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Bytes of a device's memory that are read to measure its bandwidth: many times its caches.
const DEVICE_BUFFER: usize = 1 << 30;

/// The report, and the table of phases if it is wanted.
fn measure(args: &Args) -> Result<(Report, Option<String>)> {
    let device = args.session.device();
    let mut depths = args.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let plan = Plan {
        prompt: args.prompt,
        generate: args.generate,
        depths,
    };
    let start = Instant::now();
    let model = open_model(args.model.as_deref())?;
    let session = args.session.with_context(plan.positions());
    let greedy = SamplerParams {
        temperature: 0.0,
        ..SamplerParams::default()
    };
    let mut session = session.open(&model, greedy, 0)?;
    let load_ms = 1e3 * start.elapsed().as_secs_f64();
    let canceller = session.canceller();
    on_interrupt(move || canceller.cancel())?;

    let state = model.plan(&session.options().state)?;
    let machine = Machine::here();
    let mut measured = measure::measure(&mut session, &plan, machine.cache_bytes)?;
    if let Some(device) = &session.options().device {
        measured.read_bytes_per_s = vec![device.read_bandwidth(DEVICE_BUFFER)?];
    }
    let report = Report::new(&plan, measured, machine, device, &session, &state, load_ms);
    let phases = match report.depths.last().map(|depth| depth.p50_us) {
        Some(step_us) if args.phases => phases::table(&mut session, step_us)?,
        _ => None,
    };
    Ok((report, phases))
}

impl Outputs {
    /// The files that are wanted, and what goes there.
    fn wanted(&self) -> Vec<(&Path, Text)> {
        let page: Text = match self.html.as_deref().is_some_and(is_picture) {
            true => page::picture,
            false => page::page,
        };
        let outputs: [(_, Text); 4] = [
            (&self.json, Report::to_json),
            (&self.csv, Report::to_csv),
            (&self.md, Report::to_markdown),
            (&self.html, page),
        ];
        let wanted = outputs.into_iter();
        wanted
            .filter_map(|(path, text)| Some((path.as_deref()?, text)))
            .collect()
    }

    /// Refuses what could not be written, before an hour of measuring.
    fn check(&self) -> Result<()> {
        for (path, _) in self.wanted() {
            if is_dash(path) {
                continue;
            }
            check_output(path, None)?;
            let folder = path.parent().filter(|dir| !dir.as_os_str().is_empty());
            if folder.is_some_and(|folder| !folder.is_dir()) {
                return Err(Error::input(path, "there is no such folder"));
            }
        }
        Ok(())
    }

    fn write(&self, report: &Report) -> Result<()> {
        let wanted = self.wanted();
        for (path, text) in &wanted {
            if is_dash(path) {
                print(&text(report))?;
            } else {
                crate::text::write(path, &text(report))?;
            }
        }
        if wanted.iter().any(|(path, _)| is_dash(path)) {
            return Ok(());
        }
        print(&report.to_text())
    }
}

/// A result as it is written.
type Text = fn(&Report) -> String;

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(Error::Stdout)
}
