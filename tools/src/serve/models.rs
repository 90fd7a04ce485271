//! The models of a server: one, or those of a folder. A thread loads a model of a folder when a request names it. The models that were
//! not used for longest are unloaded to make room, never while they answer.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::app::{App, Common, Loaded};
use super::folder::scan;
use super::http::busy;
use super::metrics::Gauges;
use super::print_notes;
use super::refusal::Refusal;
use crate::error::{Error, Result};
use crate::inspect::weight_bytes;
use crate::machine::Machine;
use crate::units;

/// Time between looks for models that can be unloaded.
const PAUSE: Duration = Duration::from_millis(100);

/// The models of a server.
pub struct Models {
    table: Arc<Table>,
    /// The thread that loads models of a folder.
    loader: Mutex<Option<Loader>>,
    /// Permits for requests that wait for a model.
    places: Semaphore,
}

/// The loaded models.
struct Table {
    common: Arc<Common>,
    /// In the order of their last use.
    loaded: Mutex<Vec<Loaded>>,
    /// Memory that they may take, in bytes.
    budget: usize,
}

/// The loading thread. It ends when `asks` is dropped.
struct Loader {
    asks: mpsc::Sender<Ask>,
    thread: JoinHandle<()>,
}

/// A request for a model. The load is skipped if the receiver of `reply` is gone.
struct Ask {
    name: Option<String>,
    reply: oneshot::Sender<Result<Arc<App>, Refusal>>,
}

/// A model in a list.
pub enum Entry {
    Loaded(Arc<App>),
    File(PathBuf),
}

/// The field of a request that names its model.
#[derive(Deserialize)]
struct Named {
    model: Option<String>,
}

impl Models {
    /// Opens the model, or the folder of models.
    ///
    /// # Errors
    /// The model cannot be opened, or the folder cannot be read.
    pub fn open(common: &Arc<Common>) -> Result<Self> {
        let args = &common.args;
        let mut table = Table {
            common: Arc::clone(common),
            loaded: Mutex::default(),
            budget: budget(args.memory, || Machine::here().memory_bytes),
        };
        if let Some(directory) = &args.models_dir {
            scan(directory).map_err(|e| Error::io(directory, e))?;
        } else {
            let path = args.model.as_deref();
            let checkpoint = common.checkpoint(path)?;
            let file = path.and_then(|path| path.file_name());
            let file = file.map(|name| name.to_string_lossy());
            let name = match (&args.alias, &file) {
                (Some(alias), _) => alias.clone(),
                // The rest of a directory's name may look like an extension: Qwen3.5-0.8B.
                (None, Some(file)) => file.strip_suffix(".gguf").unwrap_or(file).into(),
                (None, None) => "waterline".into(),
            };
            let loaded = Loaded::start(common, name, checkpoint)?;
            table.loaded = Mutex::new(vec![loaded]);
        }
        let table = Arc::new(table);
        let loader = args.models_dir.is_some().then(|| Loader::start(&table));
        Ok(Models {
            table,
            loader: Mutex::new(loader.transpose()?),
            places: Semaphore::new(args.limits.queue.min(Semaphore::MAX_PERMITS)),
        })
    }

    /// Whether the models are those of a folder.
    fn are_many(&self) -> bool {
        self.table.common.args.models_dir.is_some()
    }

    /// The name that the server shows at its start.
    pub fn title(&self) -> String {
        match &self.table.common.args.models_dir {
            Some(directory) => format!("the models of {}", directory.display()),
            None => self
                .table
                .lock()
                .iter()
                .map(|one| one.app.name.as_str())
                .collect(),
        }
    }

    /// Returns the model that a request names, in its body or, as `name`, outside. One model answers whatever a request names.
    ///
    /// # Errors
    /// The request names no model of the folder, the model cannot be loaded, or there is no room in time.
    pub async fn find(&self, name: Option<String>, body: &[u8]) -> Result<Arc<App>, Refusal> {
        if !self.are_many() {
            let loaded = self.table.lock();
            let first = loaded.first().map(|one| Arc::clone(&one.app));
            return first.ok_or_else(|| busy("the server ends"));
        }
        let mut name = name;
        if !body.is_empty() {
            let named = serde_json::from_slice(body);
            let Named { model } = named.map_err(|e| Refusal::bad(format!("the body: {e}")))?;
            name = model;
        }
        let name = name.filter(|name| !name.is_empty());
        if let Some(app) = name
            .as_ref()
            .and_then(|name| self.table.find(name, Loaded::is_open))
        {
            return Ok(app);
        }
        let waits = || busy("too many requests wait for a model (--queue)");
        let _place = self.places.try_acquire().map_err(|_| waits())?;
        let (reply, loaded) = oneshot::channel();
        let asks = lock(&self.loader)
            .as_ref()
            .map(|loader| loader.asks.clone());
        let sent = asks.map(|asks| asks.send(Ask { name, reply }));
        sent.and_then(Result::ok)
            .ok_or_else(|| busy("the server ends"))?;
        let patience = Duration::from_secs(self.table.common.args.limits.seconds);
        match timeout(patience, loaded).await {
            Ok(Ok(found)) => found,
            _ => Err(busy("there was no room for the model in time (--memory)")),
        }
    }

    /// The models by name, loaded or not.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<BTreeMap<String, Entry>, Refusal> {
        let files = self
            .table
            .files()?
            .into_iter()
            .map(|(name, path)| (name, Entry::File(path)));
        let mut all: BTreeMap<String, Entry> = files.collect();
        for loaded in self.table.lock().iter() {
            let app = Arc::clone(&loaded.app);
            all.insert(app.name.clone(), Entry::Loaded(app));
        }
        Ok(all)
    }

    /// The entries of `/v1/models`.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn cards(&self) -> Result<Vec<Value>, Refusal> {
        let card = |(name, entry): (String, Entry)| {
            let (mut card, status) = match entry {
                Entry::Loaded(app) => (app.card(), "loaded"),
                Entry::File(_) => {
                    let created = self.table.common.started;
                    let card = json!({ "id": name, "object": "model", "created": created, "owned_by": "waterline" });
                    (card, "unloaded")
                }
            };
            if self.are_many() {
                // As llama.cpp's server lists several models.
                card["status"] = json!({ "value": status });
            }
            card
        };
        Ok(self.list()?.into_iter().map(card).collect())
    }

    /// Whether no model's thread has failed and starts again.
    pub fn are_well(&self) -> bool {
        self.table
            .lock()
            .iter()
            .all(|loaded| loaded.app.health.is_well())
    }

    /// The present values of all models.
    pub fn gauges(&self) -> Gauges {
        let mut gauges = Gauges::default();
        for loaded in self.table.lock().iter() {
            loaded.app.add_to(&mut gauges);
        }
        gauges
    }

    /// Shows the notes of the prefix stores: files that were ignored or could not be written.
    pub fn show_notes(&self) {
        for loaded in self.table.lock().iter() {
            print_notes(&loaded.app.store);
        }
    }

    /// Unloads all models, once their last answers have ended.
    pub fn close(&self) {
        if let Some(Loader { asks, thread }) = lock(&self.loader).take() {
            drop(asks);
            let _ = thread.join();
        }
        let loaded = std::mem::take(&mut *self.table.lock());
        loaded.into_iter().for_each(Loaded::unload);
    }
}

impl Loader {
    fn start(table: &Arc<Table>) -> Result<Self> {
        let (asks, receiver) = mpsc::channel();
        let table = Arc::clone(table);
        let thread = std::thread::Builder::new().name("models".into());
        let thread = thread.spawn(move || table.run(&receiver));
        Ok(Loader {
            asks,
            thread: thread.map_err(|e| Error::io("the models' thread", e))?,
        })
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, Vec<Loaded>> {
        lock(&self.loaded)
    }

    /// Returns a loaded model, which becomes the last used one.
    fn find(&self, name: &str, is_right: impl Fn(&Loaded) -> bool) -> Option<Arc<App>> {
        let mut loaded = self.lock();
        let is_named = |one: &Loaded| one.app.name == name || one.app.name == untagged(name);
        let place = loaded
            .iter()
            .position(|one| is_named(one) && is_right(one))?;
        let found = loaded.remove(place);
        let app = Arc::clone(&found.app);
        loaded.push(found);
        Some(app)
    }

    /// Names and paths of the models in the folder.
    fn files(&self) -> Result<BTreeMap<String, PathBuf>, Refusal> {
        let directory = self.common.args.models_dir.as_deref();
        let found = directory.map_or_else(|| Ok(BTreeMap::new()), scan);
        found.map_err(|error| failed(format!("--models-dir: {error}")))
    }

    /// Loads models one at a time until all senders of `asks` are gone.
    fn run(&self, asks: &Receiver<Ask>) {
        loop {
            match asks.recv_timeout(PAUSE) {
                Ok(ask) if !ask.reply.is_closed() => {
                    let load = AssertUnwindSafe(|| self.load(&ask));
                    let loaded = catch_unwind(load);
                    let loaded = loaded.unwrap_or_else(|_| Err(failed("loading the model failed")));
                    let _ = ask.reply.send(loaded);
                }
                Err(RecvTimeoutError::Disconnected) => return,
                _ => {}
            }
            // Models that clients told to leave, and those whose thread could not start again.
            while self.unload_first(|one| !one.is_open()) {}
        }
    }

    fn load(&self, ask: &Ask) -> Result<Arc<App>, Refusal> {
        let files = self.files()?;
        let found = match &ask.name {
            Some(name) => files
                .get_key_value(name)
                .or(files.get_key_value(untagged(name))),
            None => files.iter().next().filter(|_| files.len() == 1),
        };
        let (name, path) =
            found.ok_or_else(|| unknown(ask.name.as_deref(), files.keys().map(String::as_str)))?;
        // The model may have been loaded meanwhile, or stay although it was about to leave.
        if let Some(app) = self.find(name, |one| !one.thread.is_finished()) {
            app.leaves.store(false, Ordering::Relaxed);
            return Ok(app);
        }
        let refused = |error: Error| failed(format!("model {name:?}: {}", error.sentence()));
        let checkpoint = self.common.checkpoint(Some(path)).map_err(refused)?;
        let args = &self.common.args;
        let state = args.session.state_bytes(&checkpoint).map_err(refused)?;
        let bytes = weight_bytes(&checkpoint) + state.saturating_mul(args.parallel.into());
        self.make_room(name, bytes.saturating_add(args.store.bytes()), ask)?;
        let loaded = Loaded::start(&self.common, name.clone(), checkpoint).map_err(refused)?;
        // The working memory is known now.
        self.make_room(name, loaded.bytes, ask)?;
        let app = Arc::clone(&loaded.app);
        self.lock().push(loaded);
        Ok(app)
    }

    /// Unloads models until `bytes` fit, the one that was not used for longest first. While all answer, that one gets no more requests.
    fn make_room(&self, name: &str, bytes: usize, ask: &Ask) -> Result<(), Refusal> {
        let used = || self.lock().iter().map(|one| one.bytes).sum::<usize>();
        if bytes > self.budget {
            let (needed, most) = (units::bytes(bytes), units::bytes(self.budget));
            return Err(failed(format!(
                "model {name:?}: it takes {needed}, more than the {most} of --memory"
            )));
        }
        while used().saturating_add(bytes) > self.budget {
            if self.unload_first(|_| true) {
                continue;
            }
            if ask.reply.is_closed() {
                return Err(busy("the client left"));
            }
            if let Some(first) = self.lock().first() {
                first.app.leaves.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(PAUSE / 10);
        }
        Ok(())
    }

    /// Unloads the first idle model of those that `is_right` selects. Returns false if there is none.
    fn unload_first(&self, is_right: impl Fn(&Loaded) -> bool) -> bool {
        let mut loaded = self.lock();
        let place = loaded.iter().position(|one| one.is_idle() && is_right(one));
        let first = place.map(|place| loaded.remove(place));
        drop(loaded);
        let is_found = first.is_some();
        first.into_iter().for_each(Loaded::unload);
        is_found
    }
}

/// Returns the most bytes that loaded models may take: `--memory` MiB, or three quarters of the machine's memory.
fn budget(mebibytes: Option<usize>, machine: impl FnOnce() -> Option<u64>) -> usize {
    match mebibytes {
        Some(mebibytes) => mebibytes.saturating_mul(1 << 20),
        None => machine().map_or(usize::MAX, |bytes| bytes as usize / 4 * 3),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A name without the tag that ollama's clients add.
fn untagged(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

fn failed(reason: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, reason)
}

/// A refusal of a request that names none of these models.
pub fn unknown<'a>(name: Option<&str>, all: impl Iterator<Item = &'a str>) -> Refusal {
    let names: Vec<&str> = all.collect();
    let expected = match &names[..] {
        [] => "there are no models".into(),
        names => format!("expected one of {}", names.join(", ")),
    };
    match name {
        Some(name) => {
            let reason = format!("model {name:?} not found: {expected}");
            Refusal::new(StatusCode::NOT_FOUND, reason).named("model_not_found", "model")
        }
        None => {
            Refusal::bad(format!("model: {expected}")).named("missing_required_parameter", "model")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_take_three_quarters_of_the_memory_unless_a_limit_is_given() {
        assert_eq!(budget(None, || Some(8 << 30)), 6 << 30);
        assert_eq!(budget(None, || None), usize::MAX);
        assert_eq!(budget(Some(100), || Some(8 << 30)), 100 << 20);
    }
}
