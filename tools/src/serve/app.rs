//! A loaded model: what its requests need, and how it is opened.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use waterline::internal::Checkpoint;
use waterline::{CallFormat, Model, PrefixStore, PrefixStoreOptions, ReceiptSession};

use super::metrics::{Gauges, Metrics};
use super::prompt::{Known, Prompter};
use super::refusal::Refusal;
use super::scheduler::{self, Health, Job, Shared};
use super::states::States;
use super::{Args, Limits, cost, now, print_notes, responses};
use crate::error;
use crate::inspect::weight_bytes;
use crate::sampling::SamplingArgs;
use crate::text::NO_TEMPLATE;

/// The state that the models of a server share.
pub struct Common {
    pub args: Args,
    pub metrics: Arc<Metrics>,
    /// Permits to compile a grammar.
    pub grammars: Semaphore,
    /// The conversations of the last responses.
    pub responses: responses::Kept,
    /// The state files.
    states: States,
    /// When the server started, in seconds since 1970.
    pub started: u64,
    ids: AtomicU64,
    /// The key of the ids.
    secret: RandomState,
}

impl Common {
    /// # Errors
    /// The errors of [`States::open`].
    pub fn new(args: &Args) -> error::Result<Self> {
        Ok(Common {
            states: States::open(&args.store.states)?,
            args: args.clone(),
            metrics: Arc::default(),
            grammars: Semaphore::new(cost::MOST_GRAMMARS),
            responses: responses::Kept::default(),
            started: now(),
            ids: AtomicU64::new(0),
            secret: RandomState::new(),
        })
    }

    /// Opens the files of the model at `path`, or of the built-in model.
    ///
    /// # Errors
    /// The model cannot be read.
    pub fn checkpoint(&self, path: Option<&Path>) -> error::Result<Checkpoint> {
        let session = self.args.session.with_drafts(self.args.drafts);
        self.args.open.for_sessions(&session).checkpoint(path)
    }
}

/// Places in the queue, and a share of the tokens that may wait.
pub type Places = (OwnedSemaphorePermit, Arc<OwnedSemaphorePermit>);

/// The refusal of a request for which the queue has no place.
pub fn full_queue() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the queue is full (--queue)",
    )
}

/// The queue of jobs for the scheduler.
pub struct Queue {
    pub jobs: mpsc::Sender<Job>,
    /// One permit per free place in the queue.
    pub places: Arc<Semaphore>,
    most: usize,
    /// One permit per token that waiting prompts may still have.
    pub tokens: Arc<Semaphore>,
}

impl Queue {
    /// Returns a queue with `places` free places, and its scheduler's end.
    fn new(places: usize) -> (Self, mpsc::Receiver<Job>) {
        let (jobs, received) = mpsc::channel();
        let queue = Queue {
            jobs,
            places: Arc::new(Semaphore::new(places)),
            most: places,
            tokens: Arc::new(Semaphore::new(cost::MOST_WAITING_TOKENS)),
        };
        (queue, received)
    }

    /// Takes places for `jobs` jobs whose prompts have `tokens` tokens together.
    pub fn enter(&self, jobs: usize, tokens: usize) -> Result<Places, Refusal> {
        let permits = |all: &Arc<Semaphore>, count| {
            let count = u32::try_from(count).ok()?;
            Arc::clone(all).try_acquire_many_owned(count).ok()
        };
        let places = permits(&self.places, jobs).ok_or_else(full_queue)?;
        let share = permits(&self.tokens, tokens).ok_or_else(full_queue)?;
        Ok((places, Arc::new(share)))
    }

    /// The number of jobs that wait.
    fn waiting(&self) -> usize {
        self.most - self.places.available_permits()
    }
}

/// A loaded model. A request holds it until its answer ends.
pub struct App {
    /// The model's name as clients see it.
    pub name: String,
    pub prompter: Prompter,
    pub queue: Queue,
    pub store: Arc<PrefixStore>,
    /// The state files that requests can name.
    pub states: States,
    pub health: Arc<Health>,
    pub limits: Limits,
    pub sampling: SamplingArgs,
    /// The options of the sessions, for receipts.
    pub session: ReceiptSession,
    /// The format of the model's tool calls.
    pub format: &'static CallFormat,
    /// The most tokens that a session can read; `None` if there is no limit.
    pub context: Option<usize>,
    /// Size of a session's state in bytes.
    pub state_bytes: usize,
    /// The number of sessions.
    pub parallel: usize,
    /// Answers that wait or run.
    pub active: Arc<AtomicUsize>,
    /// Whether the model is unloaded once it answers nothing.
    pub leaves: AtomicBool,
    pub common: Arc<Common>,
}

/// A model and its scheduler's thread.
pub struct Loaded {
    pub app: Arc<App>,
    pub thread: JoinHandle<()>,
    /// Memory of weights, sessions and prefix store.
    pub bytes: usize,
}

impl Loaded {
    /// Allocates the sessions of a model and starts its scheduler.
    ///
    /// # Errors
    /// The memory cannot be allocated, or the model has no tokenizer or an unusable template.
    pub fn start(
        common: &Arc<Common>,
        name: String,
        checkpoint: Checkpoint,
    ) -> error::Result<Self> {
        let args = &common.args;
        let weights = weight_bytes(&checkpoint);
        let model = Model::bind(checkpoint)?;
        if !model.has_chat_template() {
            eprintln!("{NO_TEMPLATE}");
        }
        let parallel = usize::from(args.parallel);
        let mut options = PrefixStoreOptions::default();
        let states = common.states.for_model(&model, args.models_dir.is_none())?;
        options.bytes = args.store.bytes().saturating_add(states.bytes());
        options.directory.clone_from(&args.store.directory);
        let store = PrefixStore::new(options)?;
        let open = {
            let (model, store) = (Arc::clone(&model), Arc::clone(&store));
            let session = args.session.with_drafts(args.drafts);
            let session = session.with_context(states.context());
            move || session.open_together(&model, parallel, &store)
        };
        let sessions = open()?;
        states.offer(&sessions[0])?;
        let context = model
            .reads_context()
            .then(|| sessions[0].options().state.context);
        let session = sessions[0].receipt_session();
        let state_bytes = sessions[0].state_bytes();
        let work_bytes = sessions.iter().map(|session| session.work_bytes());
        let bytes = weights + parallel * state_bytes + work_bytes.sum::<usize>();
        let bytes = bytes.saturating_add(args.store.bytes() + states.bytes());
        let known = Arc::<Known>::default();
        let prompter = Prompter::new(&model, Arc::clone(&known))?;
        let places = args.limits.queue.min(Semaphore::MAX_PERMITS);
        let (queue, jobs) = Queue::new(places);
        let is_token = |text: &str| prompter.tokenizer.token_id(text).is_some();
        let format = CallFormat::for_tools(prompter.template.source(), is_token);
        let health = Arc::<Health>::default();
        let shared = Shared {
            jobs,
            known,
            metrics: Arc::clone(&common.metrics),
            health: Arc::clone(&health),
            is_only: args.models_dir.is_none(),
        };
        let thread = scheduler::start(shared, sessions, open)?;
        let app = Arc::new(App {
            name,
            prompter,
            queue,
            store,
            states,
            health,
            limits: args.limits.clone(),
            sampling: args.sampling.clone(),
            session,
            format,
            context,
            state_bytes,
            parallel,
            active: Arc::default(),
            leaves: AtomicBool::new(false),
            common: Arc::clone(common),
        });
        Ok(Loaded { app, thread, bytes })
    }

    /// Whether requests can be given to the model.
    pub fn is_open(&self) -> bool {
        !self.app.leaves.load(Ordering::Relaxed) && !self.thread.is_finished()
    }

    /// Whether no request holds the model. New requests get it only from the table of models.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.app) == 1
    }

    /// Frees the model's memory, once its last answers have ended.
    pub fn unload(self) {
        let store = Arc::clone(&self.app.store);
        drop(self.app);
        let _ = self.thread.join();
        print_notes(&store);
    }
}

impl App {
    /// The number of answers that run.
    pub fn processing(&self) -> usize {
        let active = self.active.load(Ordering::Relaxed);
        active
            .saturating_sub(self.queue.waiting())
            .min(self.parallel)
    }

    /// Returns an id that is unique in this server, and that no client can guess: it stands for a conversation or a user.
    pub fn id(&self, prefix: &str) -> String {
        let number = self.common.ids.fetch_add(1, Ordering::Relaxed);
        let hash = self.common.secret.hash_one(number);
        format!("{prefix}-{hash:016x}{number:06x}")
    }

    /// Adds the model's present values.
    pub fn add_to(&self, gauges: &mut Gauges) {
        let store = self.store.stats();
        gauges.models += 1;
        gauges.checkpoints += store.checkpoints;
        gauges.store_bytes += store.bytes;
        gauges.waiting += self.queue.waiting();
        gauges.processing += self.processing();
    }

    /// The model's entry in lists of models.
    pub fn card(&self) -> Value {
        json!({
            "id": self.name,
            "object": "model",
            "created": self.common.started,
            "owned_by": "waterline",
            "max_model_len": self.context,
            "state_bytes": self.state_bytes,
            "tool_format": self.format.name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompts_that_wait_have_a_limit_together() {
        let (queue, _jobs) = Queue::new(2);
        let is_full = |tokens| {
            queue
                .enter(1, tokens)
                .is_err_and(|refusal| refusal.status == StatusCode::SERVICE_UNAVAILABLE)
        };
        let waiting = queue
            .enter(1, cost::MOST_WAITING_TOKENS - 5)
            .unwrap_or_else(|_| panic!("there is room"));
        assert!(is_full(6));
        // The refused request has given its place back.
        assert_eq!(queue.waiting(), 1);
        assert!(queue.enter(1, 5).is_ok());
        drop(waiting);
        assert!(queue.enter(2, cost::MOST_WAITING_TOKENS).is_ok());
        assert!(is_full(cost::MOST_WAITING_TOKENS + 1));
        assert!(queue.enter(3, 0).is_err());
    }
}
