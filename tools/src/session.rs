//! Session options of the command line, and reading a prompt.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
#[cfg(feature = "serve")]
use waterline::internal::Checkpoint;
use waterline::{
    ContextEnd, Description, Device, GenerateOptions, Kv, Model, PrefixStore, Receipt,
    SamplerParams, Session, SessionOptions, StateDtype, StateOptions, StepProgram, ThoughtOptions,
};

use crate::device::DeviceArgs;
use crate::error::{Error, Result};

/// The state that a session allocates.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Session")]
pub struct StateArgs {
    /// Number of tokens that full attention can see, such as 8192 or 8k; 0 means as many as the model was trained on. Models without full
    /// attention have no such limit.
    #[arg(long, short = 'c', alias = "ctx-size", value_name = "N", default_value_t = StateOptions::default().context, value_parser = context)]
    context: usize,
    /// Number format of cached keys and values.
    #[arg(long, default_value = "f16", value_parser = PossibleValuesParser::new(["f16", "f32"])
        .map(|name| if name == "f32" { Kv::F32 } else { Kv::F16 }))]
    kv: Kv,
}

impl StateArgs {
    /// The library's options for a model that was trained on texts of up to `trained` tokens, if that is known.
    pub fn options(&self, trained: Option<usize>) -> StateOptions {
        let mut options = StateOptions::default();
        options.kv = self.kv;
        options.context = match self.context {
            0 => trained.unwrap_or(options.context),
            context => context,
        };
        options
    }
}

/// Options for the computation of a session.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Session")]
pub struct SessionArgs {
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Policy when the context is full: stop; shift, where attention forgets the oldest tokens except the first --keep
    /// and recurrent layers continue as before; or compact, where the first --keep tokens and the newest tokens, half as
    /// many as there is room for, are read again and all layers forget the others. A chat also keeps its instructions.
    #[arg(long, value_name = "HOW", default_value = "stop", value_parser = PossibleValuesParser::new(["stop", "shift", "compact"])
        .map(|name| match name.as_str() {
            "shift" => ContextEnd::Shift,
            "compact" => ContextEnd::Compact,
            _ => ContextEnd::Refuse,
        }))]
    on_full: ContextEnd,
    /// Number of first tokens to keep when the context is full; must be less than half of the context.
    #[arg(long, value_name = "N", default_value_t = SessionOptions::default().keep)]
    keep: usize,
    /// Number of threads; 0 uses one per physical core. (bench takes several numbers, separated by commas.)
    #[arg(long, short = 't', value_name = "N", default_value = "0", value_delimiter = ',', value_parser = RangedU64ValueParser::<usize>::new().range(..=1024))]
    threads: Vec<usize>,
    /// Maximum tokens of a prompt to read at once; 0 means 256 on the CPU and 2048 on a GPU.
    #[arg(long, value_name = "N", default_value = "0")]
    chunk: usize,
    /// Give every token exactly the bits that it has when tokens are read one by one. They depend only on the preceding tokens and
    /// on CPU or GPU, not on chunks, drafts or threads. Prompts are read more slowly.
    #[arg(long)]
    exact: bool,
    /// How a GPU decodes: with one persistent kernel for the whole token, with a recorded graph of kernels, or with whichever is
    /// faster for the model.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = PossibleValuesParser::new(["auto", "persistent", "recorded"])
        .map(|name| match name.as_str() {
            "persistent" => StepProgram::Persistent,
            "recorded" => StepProgram::Recorded,
            _ => StepProgram::Automatic,
        }))]
    gpu_step: StepProgram,
    #[arg(skip)]
    drafts: DraftArgs,
}

/// Options for drafting tokens. Only commands that generate from a prompt have them: bench measures single steps, and
/// eval only reads.
#[derive(clap::Args, Clone, Copy, Default)]
#[command(next_help_heading = "Session")]
pub struct DraftArgs {
    /// Draft up to N tokens at once by looking up earlier continuations of the last tokens. Faster for repetitive text, with the
    /// same tokens. A GPU drafts up to 15; if more than 3, tokens may differ by rounding unless steps are recorded (--gpu-step).
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    lookup: u32,
    /// Draft up to N tokens at once with the model's MTP block (Qwen3-Next and Qwen3.5), with the same tokens.
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with = "lookup", value_parser = clap::value_parser!(u32).range(0..=64))]
    mtp: u32,
}

impl SessionArgs {
    /// The device, as the user gave it.
    pub fn device(&self) -> &str {
        self.device.name()
    }

    /// The number of the GPU, if the device is one.
    pub fn gpu(&self) -> Option<usize> {
        self.device.gpu()
    }

    /// Whether sessions draft with the model's MTP block.
    pub fn mtp(&self) -> bool {
        self.drafts.mtp > 0
    }

    /// The numbers of threads, as the user gave them.
    pub fn thread_counts(&self) -> &[usize] {
        &self.threads
    }

    /// Copies these arguments with one number of threads.
    pub fn with_threads(&self, threads: usize) -> Self {
        SessionArgs {
            threads: vec![threads],
            ..self.clone()
        }
    }

    /// Copies these arguments with drafts.
    pub fn with_drafts(&self, drafts: DraftArgs) -> Self {
        SessionArgs {
            drafts,
            ..self.clone()
        }
    }

    /// Copies these arguments for a session that has the bits of the one that wrote a state file.
    pub fn like(&self, file: &Description) -> Self {
        SessionArgs {
            exact: file.exact,
            chunk: file.chunk,
            threads: vec![file.threads],
            ..self.clone()
        }
    }

    /// Opens a session with the options on which a receipt's answer depends.
    pub fn open_for(&self, model: &Arc<Model>, receipt: &Receipt) -> Result<Session> {
        let mut options = self.options(model, self.device.open()?)?;
        receipt.session.set(&mut options);
        self.announced(model, options)
    }

    /// Copies these arguments with a context of at least this many tokens.
    pub fn with_context(&self, at_least: usize) -> Self {
        let mut larger = self.clone();
        larger.state.context = larger.state.context.max(at_least);
        larger
    }

    /// Opens a session, and on a GPU prints the form of its steps. The session keeps up to `mark_bytes` of marks for
    /// going back, but at least two marks; none if `mark_bytes` is 0.
    pub fn open(
        &self,
        model: &Arc<Model>,
        sampler: SamplerParams,
        mark_bytes: usize,
    ) -> Result<Session> {
        let marks = match mark_bytes {
            0 => 0,
            bytes => (bytes
                / model
                    .plan(&self.state.options(model.trained_context()))?
                    .bytes()
                    .max(1))
            .clamp(2, 16),
        };
        let mut options = self.options(model, self.device.open()?)?;
        (options.marks, options.sampler) = (marks, sampler);
        self.announced(model, options)
    }

    /// Opens a session. Prints the form of its steps on a GPU, and a note if --keep has no effect, to standard error.
    fn announced(&self, model: &Arc<Model>, options: SessionOptions) -> Result<Session> {
        let session = Session::new(Arc::clone(model), options)?;
        if let Some(form) = session.step_form() {
            eprintln!("a step on the GPU is {form}");
        }
        let shifts = self.on_full == ContextEnd::Shift && model.reads_context();
        if shifts && self.keep > 0 && !model.keeps_first_tokens() {
            eprintln!(
                "note: --keep: this model attends to blocks of its context, so the first tokens are forgotten with the oldest"
            );
        }
        Ok(session)
    }

    /// Size of the state of a session of this model in bytes.
    #[cfg(feature = "serve")]
    pub fn state_bytes(&self, checkpoint: &Checkpoint) -> Result<usize> {
        let options = self.state.options(checkpoint.trained_context);
        Ok(checkpoint.spec.plan(&options)?.bytes())
    }

    /// Copies these arguments with keys and values in f32.
    pub fn with_f32_cache(&self) -> Self {
        let mut wider = self.clone();
        wider.state.kv = Kv::F32;
        wider
    }

    /// Opens a session whose checkpoints go to `store`; on a GPU, prints the form of its steps.
    pub fn open_with_store(
        &self,
        model: &Arc<Model>,
        sampler: SamplerParams,
        store: Arc<PrefixStore>,
    ) -> Result<Session> {
        let mut options = self.options(model, self.device.open()?)?;
        (options.store, options.sampler) = (Some(store), sampler);
        self.announced(model, options)
    }

    /// Opens sessions that step together: they share a device, threads and a prefix store.
    #[cfg(feature = "serve")]
    pub fn open_together(
        &self,
        model: &Arc<Model>,
        count: usize,
        store: &Arc<PrefixStore>,
    ) -> Result<Vec<Session>> {
        let mut options = self.options(model, self.device.open()?)?;
        options.pool = Some(Arc::new(waterline::Pool::new(options.threads)?));
        options.store = Some(Arc::clone(store));
        let open = || Ok(Session::new(Arc::clone(model), options.clone())?);
        (0..count).map(|_| open()).collect()
    }

    /// Opens a session without marks on a device.
    pub fn open_on(&self, model: &Arc<Model>, device: Option<Arc<Device>>) -> Result<Session> {
        Ok(Session::new(
            Arc::clone(model),
            self.options(model, device)?,
        )?)
    }

    fn options(&self, model: &Model, device: Option<Arc<Device>>) -> Result<SessionOptions> {
        let [threads] = self.threads[..] else {
            return Err(Error::usage(
                "--threads: expected one number; bench takes several",
            ));
        };
        let mut options = SessionOptions::default();
        options.state = self.state.options(model.trained_context());
        (options.context_end, options.keep) = (self.on_full, self.keep);
        (options.chunk, options.threads) = (self.chunk, threads);
        (options.device, options.step) = (device, self.gpu_step);
        options.exact = self.exact;
        let DraftArgs { lookup, mtp } = self.drafts;
        (options.lookup, options.mtp) = (lookup as usize, mtp as usize);
        Ok(options)
    }
}

/// Limits of a generation.
#[derive(clap::Args, Clone)]
pub struct LimitArgs {
    /// Maximum tokens to generate; -1 means no limit.
    #[arg(short = 'n', long, aliases = ["n-predict", "predict"], value_name = "N", default_value_t = GenerateOptions::default().max_tokens, value_parser = max_tokens, allow_negative_numbers = true)]
    max_tokens: usize,
    /// A text that ends the generation and is not shown. May be repeated.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Continue after the token that ends an answer.
    #[arg(long)]
    ignore_eos: bool,
    /// Maximum tokens of the thought before an answer; its closing tag follows them, and the answer. 0 closes the thought at once; -1
    /// means no limit.
    #[arg(long, value_name = "N", value_parser = thought_tokens, allow_negative_numbers = true)]
    reasoning_budget: Option<Budget>,
}

/// A limit on the tokens of a thought; `None` is no limit.
pub type Budget = Option<usize>;

impl LimitArgs {
    /// The library's options; `end` is an end token in addition to the model's own, and `thought` the thought with which an answer may begin.
    pub fn options(&self, end: Option<u32>, thought: Option<ThoughtOptions>) -> GenerateOptions {
        let mut options = GenerateOptions::default();
        options.max_tokens = self.max_tokens;
        options.stop.clone_from(&self.stop);
        options.stop_at_eos = !self.ignore_eos;
        options.stop_tokens.extend(end.filter(|_| !self.ignore_eos));
        options.thought = thought.map(|mut thought| {
            thought.budget = self.reasoning_budget.flatten();
            thought
        });
        options
    }
}

/// A token limit that means no limit.
pub const MOST_TOKENS: usize = 1_000_000_000;

/// Parses the maximum number of tokens of an answer; a number below 0 means no limit.
pub fn max_tokens(text: &str) -> Result<usize, String> {
    let is_unlimited = text.parse().is_ok_and(|number: i64| number < 0);
    let number = if is_unlimited {
        Some(MOST_TOKENS)
    } else {
        count(text).filter(|&number| number > 0)
    };
    number.ok_or_else(|| "expected a number of tokens, 1 or more, or -1 for no limit".into())
}

/// Parses the maximum number of tokens of a thought; a number below 0 means no limit.
pub fn thought_tokens(text: &str) -> Result<Budget, String> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Ok(None),
        _ => count(text)
            .map(Some)
            .ok_or_else(|| "expected a number of tokens, or -1 for no limit".into()),
    }
}

/// Parses the size of a context.
fn context(text: &str) -> Result<usize, String> {
    count(text).ok_or_else(|| {
        "expected a whole number of tokens, such as 8192 or 8k, or 0 for the model's".into()
    })
}

/// Parses a whole number, with `k` for 1024 and `m` for 1024 * 1024.
fn count(text: &str) -> Option<usize> {
    let (digits, unit) = match text.to_ascii_lowercase().strip_suffix(['k', 'm']) {
        Some(digits) if text.ends_with(['k', 'K']) => (digits.to_string(), 1 << 10),
        Some(digits) => (digits.to_string(), 1 << 20),
        None => (text.to_string(), 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

/// Reading time after which the bar appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// Returns a warning if a text of `tokens` tokens is longer than the texts that the model was trained on.
pub fn beyond_training(model: &Model, tokens: u64) -> Option<String> {
    let trained = model.trained_context()?;
    (tokens > trained as u64).then(|| {
        format!(
            "warning: {tokens} tokens are read, but the model was trained on texts of up to {trained}: its output is unreliable \
             beyond that"
        )
    })
}

/// Whether a prompt's keys or values exceeded the range of an f16 cache: the logits after the prompt are NaN.
pub fn overflows_cache(session: &Session) -> Result<bool> {
    let plan = session.model().plan(&session.options().state)?;
    let is_f16 = plan
        .tensors()
        .iter()
        .any(|tensor| tensor.dtype == StateDtype::F16);
    Ok(is_f16 && session.logits()?.iter().any(|logit| logit.is_nan()))
}

/// A progress bar for reading a long prompt on a terminal.
pub struct ReadingBar {
    bar: ProgressBar,
    terminal: bool,
    start: Instant,
}

impl ReadingBar {
    /// Creates a bar that is not shown yet.
    pub fn new() -> Self {
        let style = ProgressStyle::with_template(
            "reading {bar:30} {human_pos} of {human_len} tokens {eta:>4} left",
        );
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        ReadingBar {
            bar,
            terminal: std::io::stderr().is_terminal() && std::io::stdout().is_terminal(),
            start: Instant::now(),
        }
    }

    /// Shows that `read` of `of` tokens have been read.
    pub fn show(&self, read: usize, of: usize) {
        if self.terminal && self.bar.is_hidden() && self.start.elapsed() > PATIENCE {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_length(of as u64);
        self.bar.set_position(read as u64);
    }
}

impl Drop for ReadingBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Reads a prompt, and shows the progress of a long one on a terminal.
pub fn feed(session: &mut Session, tokens: &[u32]) -> waterline::Result<()> {
    let bar = ReadingBar::new();
    session.feed_with_progress(tokens, |read| bar.show(read, tokens.len()))
}
