//! The checkpoints in a directory: listing, loading, and the thread that writes them.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::SystemTime;

use waterline_quant::{NewFile, check_private_folder, create_private_folder, open_private_file};

use super::file::{self, Body, Head, PieceHead};
use super::files::{Files, Known, id_of, path_of};
use super::keyed;
use super::tree::{Checkpoint, Key, Piece, Place, Present, Tree};
use crate::error::{Error, Result};
use crate::state::Fingerprint;

/// Checkpoints that may wait for the thread; further ones are not written.
const WAITING: usize = 8;
/// Largest number of notes kept until [`Directory::take_notes`].
const MOST_NOTES: usize = 100;

/// The directory of a store.
pub struct Directory {
    shared: Arc<Shared>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The process that has the thread; a forked child has none.
    process: u32,
}

/// State shared by the thread and the store.
struct Shared {
    path: PathBuf,
    key: keyed::Key,
    most: u64,
    files: Mutex<Files>,
    notes: Mutex<Vec<String>>,
    done: Mutex<Done>,
    idle: Condvar,
}

/// Progress of the thread.
#[derive(Default)]
struct Done {
    waiting: usize,
    written: Vec<Written>,
}

/// The nodes of a file that the thread has finished with, and whether the file exists.
pub type Written = (Vec<Place>, bool);

/// A checkpoint to write, and the nodes that stay in memory until then; the checkpoint is the last of them.
struct Job {
    key: Key,
    places: Vec<Place>,
    /// The head without the fingerprint, for which the thread may read the model.
    head: Head,
    rows: Vec<Arc<Vec<u8>>>,
    present: Arc<Present>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    /// Opens a directory and creates it if it does not exist. A directory that others may write to is refused.
    pub fn open(path: PathBuf, most: u64) -> Result<Self> {
        let error = |action| {
            let path = path.clone();
            move |source| Error::io(path, action, source)
        };
        create_private_folder(&path)
            .map_err(error("cannot create the folder of a prefix store"))?;
        check_private_folder(&path).map_err(error("cannot use the folder of a prefix store"))?;
        let key = keyed::Key::of_folder(&path)
            .map_err(error("cannot use the key in the folder of a prefix store"))?;
        let shared = Arc::new(Shared {
            most,
            files: Mutex::default(),
            notes: Mutex::default(),
            done: Mutex::default(),
            idle: Condvar::new(),
            path: path.clone(),
            key,
        });
        shared
            .read_folder(&mut lock(&shared.files))
            .map_err(error("cannot read the folder of a prefix store"))?;
        let (jobs, waiting) = sync_channel(WAITING);
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("prefix store".into())
            .spawn(move || worker.write_all(&waiting))
            .map_err(|_| {
                Error::memory(
                    "the thread of a prefix store",
                    "use a prefix store without a directory",
                )
            })?;
        Ok(Directory {
            shared,
            jobs: Some(jobs),
            thread: Some(thread),
            process: std::process::id(),
        })
    }

    /// Whether this process has the thread. A child that was forked off has neither the thread nor, perhaps, the locks that it held.
    pub fn is_own(&self) -> bool {
        self.process == std::process::id()
    }

    /// Number of usable files, and bytes of all files.
    pub fn held(&self) -> (usize, u64) {
        let files = lock(&self.shared.files);
        let usable = files.known.values().filter(|known| known.head.is_some());
        (usable.count(), files.bytes())
    }

    /// Removes the files of all checkpoints.
    pub fn clear(&self) {
        let mut files = lock(&self.shared.files);
        self.shared.refresh(&mut files);
        for (id, _) in files.known.drain() {
            // A file that cannot be removed is found again later.
            let _ = std::fs::remove_file(self.shared.name(id));
        }
        files.read_at = None;
    }

    /// Takes the notes recorded since the last call.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.shared.notes))
    }

    /// Waits until no checkpoint is waiting to be written.
    pub fn flush(&self) {
        let mut done = lock(&self.shared.done);
        while done.waiting > 0 {
            done = self
                .shared
                .idle
                .wait(done)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the files finished since the last call.
    pub fn take_written(&self) -> Vec<Written> {
        std::mem::take(&mut lock(&self.shared.done).written)
    }

    /// Queues a checkpoint for writing, unless it has a file already or the queue is full.
    pub fn keep(&self, tree: &mut Tree, place: Place) {
        let Some(path) = tree.path(place) else {
            return;
        };
        let nodes: Vec<_> = path.iter().filter_map(|&place| tree.get(place)).collect();
        let with_file = nodes.iter().rposition(|node| node.file.is_some());
        let after = with_file.map_or(0, |index| index + 1);
        let parent = with_file.and_then(|index| nodes[index].file).unwrap_or(0);
        let nodes = &nodes[after..];
        let Some(present) = nodes.last().and_then(|last| last.present.clone()) else {
            return;
        };
        let key = nodes[0].key.clone();
        let head = Head {
            model: Fingerprint([0; 32]),
            label: key.label(),
            shape: key.shape,
            parent,
            position: place.position,
            pieces: nodes
                .iter()
                .map(|node| PieceHead {
                    tokens: node.tokens.len(),
                    rows: node.rows.len(),
                    grid: node.grid,
                })
                .collect(),
            state: present.state.len(),
            logits: present.logits.len(),
            tokens: nodes
                .iter()
                .flat_map(|node| node.tokens.iter().copied())
                .collect(),
        };
        let job = Job {
            key,
            rows: nodes.iter().map(|node| Arc::clone(&node.rows)).collect(),
            places: path[after..].to_vec(),
            head,
            present,
        };
        let (places, id) = (job.places.clone(), job.head.id());
        lock(&self.shared.done).waiting += 1;
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.try_send(job).is_ok());
        if sent {
            tree.pin(&places, id)
        } else {
            lock(&self.shared.done).waiting -= 1
        }
    }

    /// Never loads this file again, because its numbers are not a valid state of its model.
    pub fn pass_over(&self, id: u64) {
        let reason = "a counter is out of range, or a value is not finite";
        let error = io::Error::new(io::ErrorKind::InvalidData, reason);
        self.shared.pass_over(id, &error);
    }

    /// Loads the deepest checkpoint that is a prefix of `tokens` into the tree, with the rows before it, if it is deeper than `position`.
    pub fn load(&self, tree: &Mutex<Tree>, key: &Key, tokens: &[u32], position: u64) {
        let chain = {
            let mut files = lock(&self.shared.files);
            self.shared.refresh(&mut files);
            files.chain(key, tokens, position)
        };
        let most = lock(tree).most() as u64;
        let mut parent = None;
        for (index, &id) in chain.iter().enumerate() {
            let is_last = index + 1 == chain.len();
            let held = lock(tree).file(id);
            if let Some((place, has_present)) = held
                && (has_present || !is_last)
            {
                parent = Some(place);
                continue;
            }
            let loaded = self.shared.load(id, key, most);
            let added = match loaded {
                Ok((head, body)) => {
                    let key = key.clone();
                    add(
                        &mut lock(tree),
                        key,
                        (id, &head, body),
                        (parent, held),
                        is_last,
                    )
                }
                Err(error) => {
                    self.shared.pass_over(id, &error);
                    None
                }
            };
            let Some(place) = added else {
                return;
            };
            parent = Some(place);
        }
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if !self.is_own() {
            // Neither can be dropped: the thread is the parent's, and it may have held the channel's lock.
            std::mem::forget((self.jobs.take(), self.thread.take()));
            return;
        }
        // Closing the channel ends the thread after all queued checkpoints are written.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Adds a file's pieces after `parent`, or its state to a node whose state was evicted. `None` if there is no room.
fn add(
    tree: &mut Tree,
    key: Key,
    (id, head, body): (u64, &Head, Body),
    (parent, held): (Option<Place>, Option<(Place, bool)>),
    with_present: bool,
) -> Option<Place> {
    let present = with_present.then_some(body.present);
    if let Some((place, _)) = held {
        let cost = head.state + head.logits * size_of::<f32>();
        return tree
            .reserve(cost, Some(place))
            .then(|| tree.refill(place, present, cost))?;
    }
    let cost = |piece: &PieceHead| Checkpoint::cost(piece.tokens, piece.rows, 0, 0);
    let pieces: usize = head.pieces.iter().map(cost).sum();
    let state = present
        .as_ref()
        .map_or(0, |_| head.state + head.logits * size_of::<f32>());
    let start = head.position - head.tokens.len() as u64;
    if parent.map_or(0, |parent| parent.position) != start || !tree.reserve(pieces + state, parent)
    {
        return None;
    }
    let (mut place, mut tokens) = (parent, &head.tokens[..]);
    let last = head.pieces.len() - 1;
    for (index, (piece, rows)) in head.pieces.iter().zip(body.rows).enumerate() {
        let (own, rest) = tokens.split_at(piece.tokens);
        tokens = rest;
        let is_last = index == last;
        let piece = Piece {
            tokens: Arc::new(own.to_vec()),
            rows,
            present: present.clone().filter(|_| is_last),
            grid: piece.grid,
            file: is_last.then_some(id),
            checked: false,
        };
        place = tree.add(key.clone(), place, piece);
    }
    place
}

impl Shared {
    fn name(&self, id: u64) -> PathBuf {
        path_of(&self.path, id)
    }

    fn note(&self, note: String) {
        let mut notes = lock(&self.notes);
        if notes.len() < MOST_NOTES {
            notes.push(note);
        }
    }

    /// Marks an unusable file, so that it is not read again.
    fn pass_over(&self, id: u64, error: &io::Error) {
        let mut files = lock(&self.files);
        if error.kind() == io::ErrorKind::NotFound {
            files.known.remove(&id);
            return;
        }
        if let Some(known) = files.known.get_mut(&id) {
            known.head = None;
        }
        self.note(format!("{}: ignored: {error}", self.name(id).display()));
    }

    /// Updates the list with files that other processes have written or removed.
    fn refresh(&self, files: &mut Files) {
        let changed = std::fs::metadata(&self.path).and_then(|about| about.modified());
        if changed.ok() != files.read_at
            && let Err(error) = self.read_folder(files)
        {
            self.note(format!("{}: cannot be read: {error}", self.path.display()));
        }
    }

    fn read_folder(&self, files: &mut Files) -> io::Result<()> {
        files.read_at = std::fs::metadata(&self.path)?.modified().ok();
        let mut found = HashSet::new();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            let Some(id) = id_of(&path) else {
                continue;
            };
            found.insert(id);
            if files.known.contains_key(&id) {
                continue;
            }
            match Known::read(&path, id) {
                Ok(known) => _ = files.known.insert(id, known),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    self.note(format!("{}: ignored: {error}", path.display()));
                    files.known.insert(id, Known::unusable(&path));
                }
            }
        }
        files.known.retain(|id, _| found.contains(id));
        Ok(())
    }

    /// Reads a complete file of at most `most` bytes and marks it as used.
    fn load(&self, id: u64, key: &Key, most: u64) -> io::Result<(Head, Body)> {
        let file = open_private_file(self.name(id))?;
        let size = file.metadata()?.len();
        if size > most {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it has {size} bytes, more than the store's memory of {most}"),
            ));
        }
        let (head, body) = self.read(&file, size)?;
        let is_of_model = key.model.fingerprint().ok() == Some(head.model);
        let is_alike = head.shape == key.shape && head.label == key.label();
        if head.id() != id || !is_alike || !is_of_model {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its name does not match its contents",
            ));
        }
        let now = SystemTime::now();
        // The modification time tells other processes which files are in use.
        let _ = file.set_modified(now);
        if let Some(known) = lock(&self.files).known.get_mut(&id) {
            known.used = now;
        }
        Ok((head, body))
    }

    fn read(&self, file: &File, size: u64) -> io::Result<(Head, Body)> {
        let mut input = BufReader::with_capacity(1 << 20, file);
        file::read(&mut input, &self.key, size)
    }

    /// Writes checkpoints until the store is dropped.
    fn write_all(&self, jobs: &Receiver<Job>) {
        while let Ok(mut job) = jobs.recv() {
            let id = job.head.id();
            let written = self.write(id, &mut job);
            // The note is there before `flush` returns.
            if let Err(error) = &written {
                let name = self.name(id);
                self.note(format!("{}: cannot be written: {error}", name.display()));
            }
            let mut done = lock(&self.done);
            done.written.push((job.places, written.is_ok()));
            done.waiting -= 1;
            drop(done);
            self.idle.notify_all();
        }
    }

    fn write(&self, id: u64, job: &mut Job) -> io::Result<()> {
        job.head.model = job.key.model.fingerprint().map_err(io::Error::other)?;
        let bytes = job.head.file_bytes().unwrap_or(u64::MAX);
        self.make_room(bytes, job.head.parent)?;
        let mut out = NewFile::replace_private(self.name(id))?;
        file::write(&mut out, &self.key, &job.head, &job.rows, &job.present)?;
        out.finish()?;
        let known = Known {
            bytes,
            used: SystemTime::now(),
            head: Some(job.head.clone()),
        };
        lock(&self.files).known.insert(id, known);
        Ok(())
    }

    /// Removes the least recently used files until `bytes` more fit. Files that hold rows for other files stay.
    fn make_room(&self, bytes: u64, parent: u64) -> io::Result<()> {
        let full = || {
            io::Error::new(
                io::ErrorKind::StorageFull,
                "the size limit of the directory leaves no room",
            )
        };
        let goal = self.most.checked_sub(bytes).ok_or_else(full)?;
        let mut files = lock(&self.files);
        self.refresh(&mut files);
        while files.bytes() > goal {
            let heads = files.known.values().filter_map(|known| known.head.as_ref());
            let parents: HashSet<u64> = heads.map(|head| head.parent).collect();
            let leaves = files
                .known
                .iter()
                .filter(|(id, _)| !parents.contains(id) && **id != parent);
            let oldest = leaves
                .min_by_key(|(_, known)| known.used)
                .map(|(&id, _)| id);
            let oldest = oldest.ok_or_else(full)?;
            files.known.remove(&oldest);
            match std::fs::remove_file(self.name(oldest)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
