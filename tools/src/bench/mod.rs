//! `waterline bench`: latency, speed and memory at chosen positions.

mod bandwidth;
mod batches;
mod compare;
mod energy;
mod measure;
mod nvml;
mod op_times;
mod overview;
mod page;
mod printed;
mod report;
#[cfg(feature = "pull")]
mod serve;
mod statistics;
mod transformer;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use waterline::{Canceller, SamplerParams};

use crate::builtin::{OpenArgs, path_of};
use crate::clocks::Begun;
use crate::error::{Error, Result};
use crate::interrupt::on_interrupt;
use crate::machine::{self, Machine};
use crate::page::{Kind, output};
use crate::provenance::{Others, Provenance};
use crate::session::SessionArgs;
#[cfg(feature = "pull")]
use crate::text::json_line;
use crate::text::shown;
use crate::units::parse_count;
use crate::write_model::check_output;
use measure::RunPlan;
pub use nvml::Gpu;
use report::{Measurement, Report};
pub use transformer::TransformerCache;

/// Measure latency, speed and memory.
///
/// The prompt is read up to three times from an empty state, for its speed and the time to the first token (medians). Then random
/// tokens are read up to each --depth, and the state is copied there. The copies then generate greedily, taking turns of 16 tokens
/// until each has generated --gen, so that other load on the machine affects all depths alike. (If the copies exceed 1 GiB in
/// total, each depth is timed when it is reached instead.) Each turn begins with one untimed token. Between the turns, the same
/// number of threads reads a buffer of four times the last-level cache. The median speed of these passes is the bandwidth with
/// which the bytes per token are compared. Resident memory is that of the process without this buffer. Percentiles are nearest
/// ranks; jitter is the mean difference of successive times.
///
/// Several models (for instance in several number formats), or several numbers of --threads, are measured one after another and
/// plotted together.
#[derive(clap::Args)]
pub struct Args {
    /// GGUF files or Hugging Face directories.
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Number of prompt tokens.
    #[arg(long, value_name = "N", default_value = "512", value_parser = count)]
    prompt: usize,
    /// Number of tokens to generate at each depth.
    #[arg(long = "gen", value_name = "N", default_value = "256", value_parser = count)]
    generate: usize,
    /// Positions at which to generate, separated by commas, such as 0,1k,1m; every token before them is read.
    #[arg(long, value_name = "LIST", default_value = "0,1024,4096", value_delimiter = ',', value_parser = depth)]
    depth: Vec<usize>,
    /// Numbers of sessions that step in one batch, separated by commas, such as 1,8,32. Prints the total tokens per
    /// second and the times of steps after the prompt.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = count)]
    sessions: Vec<usize>,
    /// Also print the time of each op of a step, after the table.
    #[arg(long)]
    ops: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Compare results that --json has written with the results of the first file, without measuring anything. The outputs are the
    /// same as for a measurement. Lists are compared entry by entry; the results in a single file are compared with each other.
    #[arg(long, num_args = 1.., value_name = "FILE", conflicts_with = "models")]
    compare: Option<Vec<PathBuf>>,
    #[command(flatten)]
    session: SessionArgs,
    #[cfg(feature = "pull")]
    #[command(flatten)]
    load: serve::LoadArgs,
}

/// Outputs for the result other than the terminal. For each of them, - is standard output in place of the table.
#[derive(clap::Args)]
struct Outputs {
    /// Write everything as JSON, including the time of every token.
    #[arg(long, value_name = "F")]
    json: Option<PathBuf>,
    /// Write a CSV file with a line for each depth.
    #[arg(long, value_name = "F")]
    csv: Option<PathBuf>,
    /// Write the tables as Markdown.
    #[arg(long, value_name = "F")]
    md: Option<PathBuf>,
    /// Write a self-contained page with plots of latency and memory. A name that ends in .svg writes only the plots.
    #[arg(long, visible_alias = "plot", value_name = "F", value_parser = output)]
    html: Option<PathBuf>,
}

fn count(text: &str) -> Result<usize, String> {
    let count = parse_count(text)?;
    if (1..=1 << 30).contains(&count) {
        Ok(count)
    } else {
        Err(format!("{text}: expected 1 to {}", 1 << 30))
    }
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = parse_count(text)?;
    if depth <= 1 << 40 {
        Ok(depth)
    } else {
        Err(format!("{text}: expected at most {}", 1u64 << 40))
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    args.outputs.check()?;
    if let Some(files) = &args.compare {
        let all = compare::read_all(files)?;
        let page = |kind| compare::to_page(&all).write(kind);
        args.outputs.write(&Texts {
            terminal: &|| compare::to_text(&all),
            json: &|| compare::to_json(&all),
            csv: &|| compare::to_csv(&all),
            markdown: &|| compare::to_markdown(&all),
            page: &page,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    #[cfg(feature = "pull")]
    if !args.load.servers.is_empty() {
        let lengths = (args.prompt, args.generate);
        let reports = serve::measure(&args.load, &args.models, lengths)?;
        let page = |kind| serve::page(&reports).write(kind);
        args.outputs.write(&Texts {
            terminal: &|| serve::to_text(&reports),
            json: &|| json_line(&reports),
            csv: &|| serve::to_csv(&reports),
            markdown: &|| serve::to_markdown(&reports),
            page: &page,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut models: Vec<Option<&Path>> = args
        .models
        .iter()
        .map(|path| Some(path.as_path()))
        .collect();
    if models.is_empty() {
        models.push(None);
    }
    let mut reports = Vec::new();
    let mut op_times = None;
    let interrupt = Interrupts::watch()?;
    for path in models {
        for &threads in args.session.thread_counts() {
            let session = args.session.with_threads(threads);
            let (report, table) = measure(args, path, &session, &interrupt)?;
            reports.push(report);
            op_times = table;
        }
    }
    let page = |kind| page::page(&reports).write(kind);
    args.outputs.write(&Texts {
        terminal: &|| overview::to_text(&reports),
        json: &|| overview::to_json(&reports),
        csv: &|| overview::to_csv(&reports),
        markdown: &|| overview::to_markdown(&reports),
        page: &page,
    })?;
    if args.ops {
        let none = "ops of a step have no times here: it runs as a recorded graph\n";
        print(op_times.as_deref().unwrap_or(none))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Directs Ctrl-C to one session after another.
struct Interrupts(Arc<Mutex<Option<Canceller>>>);

impl Interrupts {
    fn watch() -> Result<Self> {
        let current: Arc<Mutex<Option<Canceller>>> = Arc::default();
        let seen = Arc::clone(&current);
        on_interrupt(move || {
            if let Ok(Some(canceller)) = seen.lock().as_deref() {
                canceller.cancel();
            }
        })?;
        Ok(Interrupts(current))
    }

    /// Makes Ctrl-C stop this session from now on.
    fn stops(&self, canceller: Canceller) {
        if let Ok(mut current) = self.0.lock() {
            *current = Some(canceller);
        }
    }
}

/// Bytes of device memory to read for its bandwidth: many times the device's caches.
const DEVICE_BUFFER: usize = 1 << 30;

/// Measures the model at `path`. Returns the report, and the table of op times if it was requested.
fn measure(
    args: &Args,
    path: Option<&Path>,
    session: &SessionArgs,
    interrupts: &Interrupts,
) -> Result<(Report, Option<String>)> {
    let mut depths = args.depth.clone();
    depths.sort_unstable();
    depths.dedup();
    let plan = RunPlan {
        prompt: args.prompt,
        generate: args.generate,
        depths,
        gpu: session.gpu(),
    };
    let path = path.map(path_of).transpose()?;
    let path = path.as_deref();
    let checkpoint = args.open.checkpoint(path)?;
    let mut provenance = Provenance::new(path, &checkpoint)?;
    drop(checkpoint);
    machine::reset_peak();
    let others = Others::now();
    let clocks = Begun::now(session.gpu());
    let start = Instant::now();
    let model = args.open.model(path)?;
    let session = session.with_context(plan.positions() + batches::UNTIMED);
    let mut greedy = SamplerParams::default();
    greedy.temperature = 0.0;
    let device = session.device();
    let mut session = session.open(&model, greedy, 0)?;
    let load_ms = 1e3 * start.elapsed().as_secs_f64();
    interrupts.stops(session.canceller());

    let state = model.plan(&session.options().state)?;
    let machine = Machine::here();
    let mut measured = measure::measure(&mut session, &plan, machine.cache_bytes)?;
    if let Some(device) = &session.options().device {
        measured.read_bytes_per_s = vec![device.read_bandwidth(DEVICE_BUFFER)?];
        provenance.gpu = Some(device.name().into());
    }
    provenance.clocks = clocks.end();
    if let Some(others) = others {
        others.note(machine.logical_cores, &mut provenance);
    }
    let work = (plan.prompt, plan.generate);
    measured.batches = batches::measure(&mut session, &args.sessions, work)?;
    let measurement = Measurement {
        provenance,
        machine,
        device,
        session: &session,
        state: &state,
        load_ms,
    };
    let report = Report::new(&plan, measured, measurement);
    let op_times = match report.depths.last().map(|depth| depth.p50_us) {
        Some(step_us) if args.ops => op_times::table(&mut session, step_us)?,
        _ => None,
    };
    Ok((report, op_times))
}

/// A result in the form of each output.
struct Texts<'a> {
    terminal: &'a dyn Fn() -> String,
    json: &'a dyn Fn() -> String,
    csv: &'a dyn Fn() -> String,
    markdown: &'a dyn Fn() -> String,
    page: &'a dyn Fn(Kind) -> String,
}

impl Outputs {
    /// The paths of the outputs.
    fn paths(&self) -> [Option<&Path>; 4] {
        [&self.json, &self.csv, &self.md, &self.html].map(Option::as_deref)
    }

    /// Refuses outputs that cannot be written, before the measurement takes its time.
    fn check(&self) -> Result<()> {
        let paths = self.paths().into_iter().flatten();
        let mut files = paths.filter(|path| !is_dash(path));
        files.try_for_each(|path| check_output(path, None))
    }

    fn write(&self, texts: &Texts) -> Result<()> {
        let page = || (texts.page)(self.html.as_deref().map_or(Kind::Page, Kind::new));
        let written: [&dyn Fn() -> String; 4] = [texts.json, texts.csv, texts.markdown, &page];
        let mut printed = false;
        for (path, text) in self.paths().into_iter().zip(written) {
            match path {
                Some(path) if is_dash(path) => {
                    print(&text())?;
                    printed = true;
                }
                Some(path) => crate::text::write(path, &text())?,
                None => (),
            }
        }
        if printed {
            return Ok(());
        }
        print(&(texts.terminal)())
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(shown(text).as_bytes());
    written.map_err(Error::Stdout)
}
