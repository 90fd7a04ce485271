//! `waterline serve`: the HTTP APIs that language model clients use. One thread owns the model (`scheduler`).
//! Connections (`http`) build prompts, submit them and send the answers.

mod answer;
mod answers;
mod anthropic;
mod completions;
mod connections;
mod constrain;
mod cost;
mod draft;
mod exchange;
mod fields;
mod http;
mod lanes;
mod log;
mod logprobs;
mod metrics;
mod native;
mod ollama;
mod openai;
mod prompt;
mod refusal;
mod request;
mod responses;
mod routes;
mod scheduler;
mod scores;
mod stream;

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::NonEmptyStringValueParser;
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use waterline::{CallFormat, Model, PrefixStore, PrefixStoreOptions};

use crate::builtin::{OpenArgs, is_builtin};
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::sampling::SamplingArgs;
use crate::session::{Budget, DraftArgs, SessionArgs, max_tokens, thought_tokens};
use crate::text::{NO_TEMPLATE, shown};
use connections::Connections;
use exchange::Exchange;
use lanes::Lanes;
use log::{Log, LogForm};
use metrics::{Gauges, Metrics};
use prompt::{Known, Prompter};
use scheduler::{Health, Job, Shared};

/// Serve a model over HTTP, compatible with OpenAI's and Anthropic's APIs.
///
/// Requests of all clients are answered together, one token of each per step. A prompt's beginning that was read before is not read
/// again (the prefix store). The first Ctrl-C lets running answers finish; a second one ends them.
/// runtime/docs/serve.md lists the endpoints.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// The address to listen on. Other machines can connect only if it is one of this machine's network addresses or 0.0.0.0.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: std::net::IpAddr,
    /// The port to listen on; 0 picks a free one.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Another host name to accept, if a proxy on this machine passes requests on under that name.
    #[arg(long = "allow-host", value_name = "NAME")]
    allowed_hosts: Vec<String>,
    /// A web page's origin to accept, such as app://obsidian.md; `*` accepts all. May be repeated.
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    allowed_origins: Vec<String>,
    /// The API key that clients must send.
    #[arg(
        long,
        value_name = "KEY",
        env = "WATERLINE_API_KEY",
        hide_env_values = true,
        value_parser = NonEmptyStringValueParser::new()
    )]
    api_key: Option<String>,
    /// The model's name as clients see it.
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// Answers that are generated together; memory for each is allocated at startup.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    parallel: u16,
    /// Write a line for each request to standard output: client, tokens, times and ending, without contents.
    #[arg(
        long,
        value_name = "FORM",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "text"
    )]
    log: Option<LogForm>,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

/// The longest time limit of a request: a year.
const MOST_SECONDS: u64 = 365 * 24 * 3600;

/// Limits of requests.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Limits")]
pub struct Limits {
    /// Answers that may wait in the queue; further requests are refused and can be retried.
    #[arg(long = "queue", value_name = "N", default_value_t = 64)]
    queue: usize,
    /// Maximum size of a request body.
    #[arg(long = "max-body", value_name = "BYTES", default_value_t = 16 << 20)]
    body: usize,
    /// Maximum number of messages in a conversation.
    #[arg(long = "max-messages", value_name = "N", default_value_t = 4096)]
    messages: usize,
    /// Maximum tokens of an answer, and the default for chats; -1 means no limit.
    #[arg(
        short = 'n',
        long = "max-tokens",
        value_name = "N",
        default_value_t = 4096,
        value_parser = max_tokens,
        allow_negative_numbers = true
    )]
    tokens: usize,
    /// Maximum tokens of the thought before an answer, if the request states none; its closing tag follows them, and the answer. -1 means
    /// no limit.
    #[arg(long, value_name = "N", value_parser = thought_tokens, allow_negative_numbers = true)]
    reasoning_budget: Option<Budget>,
    /// Maximum time from a request to the end of its answer.
    #[arg(long = "timeout", value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=MOST_SECONDS))]
    seconds: u64,
}

/// The prefix store.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Prefix store")]
struct StoreArgs {
    /// Maximum size of the checkpoints in memory, in MiB.
    #[arg(long = "store", value_name = "MIB", default_value_t = 1024)]
    mib: usize,
    /// A folder that keeps checkpoints for later runs.
    #[arg(long = "store-dir", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Reuse what was read only for requests of the same `prompt_cache_key`, `user` or `metadata.user_id`; nothing for requests without.
    #[arg(long)]
    private_cache: bool,
}

/// The queue of jobs for the scheduler.
struct Queue {
    jobs: mpsc::Sender<Job>,
    /// One permit per free place in the queue.
    places: Arc<Semaphore>,
    most: usize,
    /// One permit per token that waiting prompts may still have.
    tokens: Arc<Semaphore>,
}

impl Queue {
    /// The number of jobs that wait.
    fn waiting(&self) -> usize {
        self.most - self.places.available_permits()
    }
}

/// The state that connections share.
pub struct App {
    /// The model's name as clients see it.
    name: String,
    prompter: Prompter,
    queue: Queue,
    lanes: Lanes,
    connections: Connections,
    /// Permits for long bodies that are received or prepared, one per KiB.
    bodies: Arc<Semaphore>,
    /// Permits to compile a grammar.
    grammars: Semaphore,
    health: Arc<Health>,
    store: Arc<PrefixStore>,
    metrics: Arc<Metrics>,
    log: Option<Log>,
    limits: Limits,
    sampling: SamplingArgs,
    api_key: Option<String>,
    /// The address that the server listens on.
    address: SocketAddr,
    allowed_hosts: Vec<String>,
    /// Whether requests share what was read only with those of the same user.
    private_cache: bool,
    allowed_origins: Vec<String>,
    /// The format of the model's tool calls.
    format: &'static CallFormat,
    /// The most tokens that a session can read; `None` if there is no limit.
    context: Option<usize>,
    /// Size of a session's state in bytes.
    state_bytes: usize,
    /// The number of sessions.
    parallel: usize,
    /// Answers that wait or run.
    active: Arc<AtomicUsize>,
    /// The conversations of the last responses.
    responses: responses::Kept,
    /// When the server started, in seconds since 1970.
    started: u64,
    ids: AtomicU64,
    /// The key of the ids.
    secret: RandomState,
}

impl App {
    /// The number of answers that run.
    fn processing(&self) -> usize {
        let active = self.active.load(Ordering::Relaxed);
        active
            .saturating_sub(self.queue.waiting())
            .min(self.parallel)
    }

    /// Returns an id that is unique in this server, and that no client can guess: it stands for a conversation or a user.
    fn id(&self, prefix: &str) -> String {
        let number = self.ids.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}-{:016x}{number:06x}", self.secret.hash_one(number))
    }

    /// A request that arrives now; `stuck` ends its connection.
    fn exchange(
        &self,
        client: SocketAddr,
        request: &Request<Incoming>,
        stuck: &Arc<Notify>,
    ) -> Exchange {
        let observers = (Arc::clone(&self.metrics), self.log.clone());
        let path = request.uri().path();
        Exchange::new(observers, Arc::clone(stuck), client, path)
    }

    fn gauges(&self) -> Gauges {
        let store = self.store.stats();
        Gauges {
            waiting: self.queue.waiting(),
            checkpoints: store.checkpoints,
            store_bytes: store.bytes,
        }
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let session = args.session.with_drafts(args.drafts);
    let model = args
        .open
        .for_sessions(&session)
        .model(args.model.as_deref())?;
    if !model.has_chat_template() {
        eprintln!("{NO_TEMPLATE}");
    }
    let mut options = PrefixStoreOptions::default();
    options.bytes = args.store.mib.saturating_mul(1 << 20);
    options.directory.clone_from(&args.store.directory);
    let store = PrefixStore::new(options)?;
    let open = {
        let (model, store, parallel) = (Arc::clone(&model), Arc::clone(&store), args.parallel);
        move || session.open_together(&model, usize::from(parallel), &store)
    };
    let sessions = open()?;
    let context = model
        .reads_context()
        .then(|| sessions[0].options().state.context);
    let state_bytes = sessions[0].state_bytes();
    let (known, metrics) = (Arc::<Known>::default(), Arc::<Metrics>::default());
    let prompter = Prompter::new(&model, Arc::clone(&known))?;
    let (sender, jobs) = mpsc::channel();
    let most = args.limits.queue.min(Semaphore::MAX_PERMITS);
    let queue = Queue {
        jobs: sender,
        places: Arc::new(Semaphore::new(most)),
        most,
        tokens: Arc::new(Semaphore::new(cost::MOST_WAITING_TOKENS)),
    };
    let is_token = |text: &str| prompter.tokenizer.token_id(text).is_some();
    let format = CallFormat::for_tools(prompter.template.source(), is_token);
    let health = Arc::<Health>::default();
    let shared = Shared {
        jobs,
        known,
        metrics: Arc::clone(&metrics),
        health: Arc::clone(&health),
    };
    let model_thread = scheduler::start(shared, sessions, open)?;
    let (lanes, lane_threads) = Lanes::start()?;
    let log = args
        .log
        .map(|form| Log::start(form, std::io::stdout()))
        .transpose()
        .map_err(|e| Error::io("the log's thread", e))?;
    let (log, _log_thread) = log.unzip();
    let app = App {
        name: name(args, &model),
        prompter,
        queue,
        lanes,
        connections: Connections::default(),
        bodies: cost::bodies(args.limits.body),
        grammars: Semaphore::new(cost::MOST_GRAMMARS),
        health,
        store,
        metrics,
        log,
        limits: args.limits.clone(),
        sampling: args.sampling.clone(),
        api_key: args.api_key.clone(),
        address: SocketAddr::new(args.host, args.port),
        allowed_hosts: args.allowed_hosts.clone(),
        private_cache: args.store.private_cache,
        allowed_origins: args.allowed_origins.clone(),
        format,
        context,
        state_bytes,
        parallel: usize::from(args.parallel),
        active: Arc::default(),
        responses: responses::Kept::default(),
        started: now(),
        ids: AtomicU64::new(0),
        secret: RandomState::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("the server", e))?;
    runtime.block_on(listen(app))?;
    // Shutting the runtimes down drops the last queue senders, so the model's thread ends.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(lane_threads);
    let _ = model_thread.join();
    Ok(ExitCode::SUCCESS)
}

async fn listen(mut app: App) -> Result<()> {
    let refused = |e| Error::io(format!("{}", app.address), e);
    let listener = TcpListener::bind(app.address).await.map_err(refused)?;
    app.address = listener.local_addr().map_err(refused)?;
    let (stop, stopped) = watch::channel(false);
    on_first_interrupt(move || {
        stop.send_replace(true);
    })?;
    eprintln!("{} at http://{}", app.name, app.address);
    let grace = Duration::from_secs(app.limits.seconds);
    let store = Arc::clone(&app.store);
    tokio::spawn(show_notes(Arc::clone(&store)));
    http::serve(listener, Arc::new(app), stopped, grace).await;
    print_notes(&store);
    Ok(())
}

/// Shows the notes of the prefix store while the server runs: files that were ignored or could not be written.
async fn show_notes(store: Arc<PrefixStore>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        print_notes(&store);
    }
}

fn print_notes(store: &PrefixStore) {
    for note in store.take_notes() {
        eprintln!("note: {}", shown(&note));
    }
}

/// The model's name as clients see it.
fn name(args: &Args, model: &Model) -> String {
    let stem = args.model.as_ref().and_then(|path| path.file_stem());
    match (&args.alias, stem) {
        (Some(alias), _) => alias.clone(),
        (None, Some(stem)) if !is_builtin(model) => stem.to_string_lossy().into_owned(),
        _ => "waterline".into(),
    }
}
