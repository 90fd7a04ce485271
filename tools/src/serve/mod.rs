//! `waterline serve`: the HTTP APIs that language model clients use. A thread owns each loaded model (`scheduler`); `models` finds the
//! model of a request. Connections (`http`) build prompts, submit them and send the answers.

mod answer;
mod answers;
mod anthropic;
mod app;
mod completions;
mod connections;
mod constrain;
mod cost;
mod draft;
mod embeddings;
mod exchange;
mod fields;
mod folder;
mod http;
mod lanes;
mod log;
mod logprobs;
mod metrics;
mod models;
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
mod states;
mod stream;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::NonEmptyStringValueParser;
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};
use waterline::PrefixStore;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::sampling::SamplingArgs;
use crate::session::{Budget, DraftArgs, SessionArgs, max_tokens, thought_tokens};
use crate::text::shown;
use crate::vectors::VectorArgs;
use app::{App, Common};
use connections::Connections;
use exchange::Exchange;
use lanes::Lanes;
use log::{Log, LogForm};
use models::Models;
use states::{NamedFile, named_file};

/// Serve a model over HTTP, compatible with OpenAI's and Anthropic's APIs.
///
/// Requests of all clients are answered together, one token of each per step. A prompt's beginning that was read before is not read
/// again (the prefix store). The first Ctrl-C lets running answers finish; a second one ends them.
/// runtime/docs/serve.md lists the endpoints.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    /// Serve the GGUF files and Hugging Face directories in a folder. A model is loaded when a request names it.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "alias"])]
    models_dir: Option<PathBuf>,
    /// Memory for the loaded models of --models-dir: weights, sessions, and for each the --store. The model that was unused for longest
    /// makes room for another. By default three quarters of the machine's memory.
    #[arg(long, value_name = "MIB", requires = "models_dir")]
    memory: Option<usize>,
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
    vectors: VectorArgs,
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
    /// A state file that waterline read wrote. A request with this `state`, or whose prompt begins with its tokens, continues from it. May
    /// be repeated.
    #[arg(long = "state", value_name = "NAME=FILE", value_parser = named_file)]
    states: Vec<NamedFile>,
    /// Reuse what was read only for requests of the same `prompt_cache_key`, `user` or `metadata.user_id`; nothing for requests without.
    #[arg(long)]
    private_cache: bool,
}

impl StoreArgs {
    /// Maximum size of the checkpoints in memory, in bytes.
    fn bytes(&self) -> usize {
        self.mib.saturating_mul(1 << 20)
    }
}

/// The state that connections share.
pub struct Server {
    models: Models,
    lanes: Lanes,
    connections: Connections,
    /// Permits for long bodies that are received or prepared, one per KiB.
    bodies: Arc<Semaphore>,
    common: Arc<Common>,
    log: Option<Log>,
    /// The address that the server listens on.
    address: SocketAddr,
}

impl Server {
    /// A request that arrives now; `stuck` ends its connection.
    fn exchange(
        &self,
        client: SocketAddr,
        request: &Request<Incoming>,
        stuck: &Arc<Notify>,
    ) -> Exchange {
        let observers = (Arc::clone(&self.common.metrics), self.log.clone());
        let path = request.uri().path();
        Exchange::new(observers, Arc::clone(stuck), client, path)
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let common = Arc::new(Common::new(args)?);
    let models = Models::open(&common)?;
    let (lanes, lane_threads) = Lanes::start()?;
    let log = args
        .log
        .map(|form| Log::start(form, std::io::stdout()))
        .transpose()
        .map_err(|e| Error::io("the log's thread", e))?;
    let (log, _log_thread) = log.unzip();
    let server = Server {
        models,
        lanes,
        connections: Connections::default(),
        bodies: cost::bodies(args.limits.body),
        common,
        log,
        address: SocketAddr::new(args.host, args.port),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("the server", e))?;
    let server = runtime.block_on(listen(server))?;
    // Shutting the runtimes down drops what requests hold, so that the models' threads end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    drop(lane_threads);
    server.models.close();
    Ok(ExitCode::SUCCESS)
}

async fn listen(mut server: Server) -> Result<Arc<Server>> {
    let refused = |e| Error::io(format!("{}", server.address), e);
    let listener = TcpListener::bind(server.address).await.map_err(refused)?;
    server.address = listener.local_addr().map_err(refused)?;
    let (stop, stopped) = watch::channel(false);
    on_first_interrupt(move || {
        stop.send_replace(true);
    })?;
    eprintln!("{} at http://{}", server.models.title(), server.address);
    let grace = Duration::from_secs(server.common.args.limits.seconds);
    let server = Arc::new(server);
    tokio::spawn(show_notes(Arc::clone(&server)));
    http::serve(listener, Arc::clone(&server), stopped, grace).await;
    Ok(server)
}

/// Shows the notes of the prefix stores while the server runs.
async fn show_notes(server: Arc<Server>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        server.models.show_notes();
    }
}

fn print_notes(store: &PrefixStore) {
    for note in store.take_notes() {
        eprintln!("note: {}", shown(&note));
    }
}
