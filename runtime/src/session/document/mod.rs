//! A state as a document: a file with the checkpoints of one text, which any program can list, check and continue from
//! (`docs/state-format.md`).

mod file;
mod format;
mod writer;

use std::sync::Arc;

use waterline_quant::Simd;

use self::file::{Contents, bad};
use self::format::{Head, padded};
use super::checkpoints::with_bytes;
use super::reading::Reading;
use super::{Session, check_numbers};
use crate::error::{Error, Result};
use crate::state::{HISTORY, LOGITS, Size, StatePlan, StateTensor, is_sound};

pub use self::file::{StateFile, StateRecord};
pub use self::format::{Description, Rows, TensorEntry};
pub use self::writer::StateWriter;

/// Tokens between two checkpoints of a state file, unless the caller sets another number.
pub const SEGMENT: usize = 4096;

impl Session {
    /// Describes this session for the header of a state file.
    ///
    /// # Errors
    /// [`Error::Memory`]: the first call reads the model for its fingerprint.
    pub fn describe(&self) -> Result<Description> {
        Ok(Description {
            name: self.model.name().into(),
            model: self.model.fingerprint()?.to_string(),
            tokenizer: self.model.tokenizer_hash(),
            device: self.device_class(),
            exact: self.options.exact,
            threads: self.threads(),
            chunk: self.options.chunk,
            tensors: self.entries(),
        })
    }

    /// The kind of device whose bits this session's states have: its vector instructions, or its GPU.
    pub fn device_class(&self) -> String {
        match &self.options.device {
            Some(device) => format!("cuda {}", device.name()),
            None => format!("cpu {:?}", Simd::detect()).to_lowercase(),
        }
    }

    fn entries(&self) -> Vec<TensorEntry> {
        let own = (0..=LOGITS).map(|_| None);
        let layers = self.model.spec().states().flatten();
        let rows = own.chain(layers.map(|tensor| rows_of(&tensor)));
        let tensors = self.engine.plan().tensors().iter().zip(rows);
        tensors
            .map(|(tensor, rows)| TensorEntry {
                layer: tensor.layer,
                name: tensor.name.clone(),
                kind: tensor.kind,
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                rows,
            })
            .collect()
    }

    /// Fails if this session cannot continue from the file's checkpoints: it is of another model, or its tensors have other types or
    /// shapes. The context may differ, and a session without `exact` may continue from any device's state.
    ///
    /// # Errors
    /// [`Error::Snapshot`] says what differs.
    pub fn check_state_file(&self, file: &StateFile) -> Result<()> {
        let theirs = file.description();
        let own = self.model.fingerprint()?.to_string();
        if theirs.model != own {
            let reason = format!(
                "it is a state of another model ({}, {}), not of {} ({own})",
                theirs.name,
                theirs.model,
                self.model.file()
            );
            return Err(bad(file.path(), reason));
        }
        if self.options.exact && !(theirs.exact && theirs.device == self.device_class()) {
            let kind = if theirs.exact { "exact" } else { "not exact" };
            let reason = format!(
                "it is {kind} and was read on {}; an exact session on {} continues only from exact states of its device",
                theirs.device,
                self.device_class()
            );
            return Err(bad(file.path(), reason));
        }
        let ours = self.entries();
        if ours.len() != theirs.tensors.len() {
            let reason = format!(
                "it has {} tensors, but this session has {}; a model that is opened with its MTP block has more",
                theirs.tensors.len(),
                ours.len()
            );
            return Err(bad(file.path(), reason));
        }
        let differs = |(ours, theirs): &(&TensorEntry, &TensorEntry)| {
            layout(ours) != layout(theirs) || theirs.bytes().is_none()
        };
        if let Some((ours, theirs)) = ours.iter().zip(&theirs.tensors).find(differs) {
            let reason = format!(
                "tensor {} is {:?} {:?} in the file and {:?} {:?} in this session; open the session with the same cache type",
                theirs.name, theirs.dtype, theirs.shape, ours.dtype, ours.shape
            );
            return Err(bad(file.path(), reason));
        }
        Ok(())
    }

    /// Brings the session to a checkpoint of a state file: the bits that the session had which wrote it. The random number state is kept.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if the file is of another session or damaged, or holds a value that no state has; [`Error::ContextFull`] if
    /// the context is shorter than its text. The session has then read nothing.
    pub fn open_state(&mut self, file: &StateFile, index: usize) -> Result<()> {
        self.check_state_file(file)?;
        self.forget()?;
        let opened = self.copy_state(file, index);
        if opened.is_err() {
            // Rows may have been copied already.
            self.forget()?;
        }
        opened
    }

    /// Copies a checkpoint of a state file to the empty state.
    fn copy_state(&mut self, file: &StateFile, index: usize) -> Result<()> {
        let head = *file.head(index);
        if head.position > self.most_position() {
            return Err(Error::ContextFull {
                context: self.options.state.context,
                position: 0,
                requested: head.position as usize,
            });
        }
        let plan = self.engine.plan().clone();
        for part in 0..=index {
            let positions = file.start(part)..file.head(part).position;
            let rows = self.part_rows(file, part)?;
            self.engine
                .copy_in(&mut with_bytes(plan.rows(positions), &rows))?;
        }
        let (state, logits) = self.part_state(file, index)?;
        let place = &plan.tensors()[LOGITS];
        let place = place.offset..place.offset + place.bytes;
        let logits = (place, bytemuck::cast_slice(&logits));
        let state = with_bytes(plan.present(), &state);
        self.engine.copy_in(&mut state.chain([logits]))?;
        let first = file.head(0).position - file.head(0).tokens;
        let tokens = &file.tokens()[..(head.position - first) as usize];
        self.set_history(first, tokens);
        self.engine.replace_own()?;
        let all = Some(tokens).filter(|_| first == 0);
        let hash = Some(head.hash).filter(|&hash| hash != 0);
        self.reading = Reading::restored(head.grid, hash, all);
        Ok(())
    }

    /// Lets sessions that share this session's store continue from the file's checkpoints when a history begins with its tokens.
    ///
    /// # Errors
    /// The errors of [`Session::check_state_file`], and [`Error::Invalid`] if the session has no store.
    pub fn offer_state(&self, file: Arc<StateFile>) -> Result<()> {
        self.check_state_file(&file)?;
        let store = self.options.store.as_ref();
        let store = store.ok_or_else(|| Error::invalid("state", "the session has no store"))?;
        store.offer(&self.key(), file);
        Ok(())
    }

    /// The rows of a checkpoint, as many as this session's layout has, with values that a state can have.
    pub(super) fn part_rows(&self, file: &StateFile, index: usize) -> Result<Vec<u8>> {
        let positions = file.start(index)..file.head(index).position;
        let plan = self.engine.plan();
        let expected = plan.row_bytes(positions.clone()) as u64;
        let found = file.head(index).rows;
        if found != expected {
            let reason = format!("record {index} has {found} bytes of rows, expected {expected}");
            return Err(bad(file.path(), reason));
        }
        let rows = file.rows(index)?;
        let tensors = plan.tensor_rows(positions.clone());
        let is_sound = tensors
            .zip(with_bytes(plan.rows(positions), &rows))
            .all(|((tensor, _), (_, bytes))| is_sound(None, tensor, bytes));
        is_sound.then_some(rows).ok_or_else(|| unsound(file, index))
    }

    /// The state of a checkpoint without padding, and its logits, with values that a state can have.
    pub(super) fn part_state(&self, file: &StateFile, index: usize) -> Result<(Vec<u8>, Vec<f32>)> {
        let (plan, head) = (self.engine.plan(), file.head(index));
        let expected = [padded_state(plan), self.model.spec().vocab as u64];
        if [head.state, head.logits] != expected {
            let reason = format!(
                "record {index} has {} bytes of state and {} logits, expected {} and {}",
                head.state, head.logits, expected[0], expected[1]
            );
            return Err(bad(file.path(), reason));
        }
        let (bytes, logits, _) = file.state(index)?;
        let mut state = Vec::with_capacity(plan.present_bytes());
        let mut at = 0;
        for part in plan.present() {
            state.extend_from_slice(&bytes[at..at + part.len()]);
            at += padded(part.len() as u64).unwrap_or(0) as usize;
        }
        let logits = bytes[logits..][..4 * self.model.spec().vocab].as_chunks();
        let logits = logits.0.iter().map(|&bits| f32::from_le_bytes(bits));
        let logits: Vec<f32> = logits.collect();
        let is_sound = plan
            .present_tensors(&state)
            .all(|(tensor, bytes)| is_sound(None, tensor, bytes));
        if !is_sound || logits.iter().any(|logit| logit.is_nan()) {
            return Err(unsound(file, index));
        }
        check_numbers(head.position, plan.present_tensors(&state)).map_err(
            |error| match error {
                Error::Snapshot { reason, .. } => bad(file.path(), reason),
                other => other,
            },
        )?;
        Ok((state, logits))
    }

    /// Reads the rest of `tokens`, of which the session has read its position, and appends a checkpoint every `segment` tokens and after
    /// the last token. `progress(read)` is called after every chunk with the number of tokens read in all.
    ///
    /// # Errors
    /// See [`Session::feed`] and [`Error::Io`]; what was appended stays.
    pub fn read_into(
        &mut self,
        writer: &mut StateWriter,
        tokens: &[u32],
        segment: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<()> {
        let segment = segment.max(1);
        let mut start = self.position() as usize;
        self.check(&tokens[start..])?;
        while start < tokens.len() {
            let end = tokens.len().min((start / segment + 1) * segment);
            self.feed_with_progress(&tokens[start..end], |read| progress(start + read))?;
            self.append_to(writer, &tokens[start..end], end == tokens.len())?;
            start = end;
        }
        Ok(())
    }

    /// Appends a checkpoint of this state, whose last tokens are `tokens`.
    fn append_to(&mut self, writer: &mut StateWriter, tokens: &[u32], last: bool) -> Result<()> {
        let here = self.position();
        self.engine.begin_copy(here - tokens.len() as u64..here)?;
        let copy = self.engine.end_copy()?;
        let random = self.random();
        let head = Head {
            position: here,
            grid: self.grid(),
            hash: self.reading.tokens().unwrap_or(0),
            random: [random.seed, random.draws],
            last: last.into(),
            ..Head::default()
        };
        let plan = self.engine.plan();
        writer.append(Contents {
            head,
            tokens,
            rows: &copy.rows,
            state: &mut plan.present_tensors(&copy.present).map(|(_, bytes)| bytes),
            logits: self.engine.logits()?,
            note: &[],
        })
    }

    /// Reads the segment before a checkpoint again, from the checkpoint before it, and compares the states bit by bit.
    ///
    /// # Errors
    /// [`Error::Snapshot`] names the segment and the first tensor whose bits differ; the errors of [`Session::open_state`] and
    /// [`Session::feed`].
    pub fn check_segment(&mut self, file: &StateFile, index: usize) -> Result<()> {
        self.check_state_file(file)?;
        match index.checked_sub(1) {
            Some(before) => self.open_state(file, before)?,
            None => self.forget()?,
        }
        let positions = file.start(index)..file.head(index).position;
        let differs = |what: &str| {
            let reason = format!(
                "segment {index}, tokens {} to {}: {what} after reading them again",
                positions.start, positions.end
            );
            Err(bad(file.path(), reason))
        };
        if file.tokens().len() as u64 != file.head(file.records().len() - 1).position {
            return differs("it does not hold all its tokens, which cannot be read");
        }
        self.feed(&file.tokens()[positions.start as usize..positions.end as usize])?;
        let (rows, plan) = (self.part_rows(file, index)?, self.engine.plan().clone());
        let (state, logits) = self.part_state(file, index)?;
        self.engine.begin_copy(positions.clone())?;
        let copy = self.engine.end_copy()?;
        let named = |layer: Option<usize>, name: &str| match layer {
            Some(layer) => format!("tensor {name} of layer {layer} differs"),
            None => format!("tensor {name} differs"),
        };
        let theirs = with_bytes(plan.rows(positions.clone()), &rows);
        let ours = with_bytes(plan.rows(positions.clone()), &copy.rows);
        let tensors = plan
            .tensor_rows(positions.clone())
            .map(|(tensor, _)| tensor);
        for (tensor, (one, other)) in tensors.zip(theirs.zip(ours)) {
            if one.1 != other.1 {
                return differs(&named(tensor.layer, &tensor.name));
            }
        }
        let ours = plan.present_tensors(&copy.present);
        for ((tensor, one), (_, other)) in plan.present_tensors(&state).zip(ours) {
            if one != other {
                return differs(&named(tensor.layer, &tensor.name));
            }
        }
        let bits = |logits: &[f32]| logits.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        if bits(&logits) != bits(self.engine.logits()?) {
            return differs("the logits differ");
        }
        if file.head(index).grid != self.grid() {
            return differs("the ends of its chunks differ");
        }
        Ok(())
    }

    /// Sets the position and the history to those of a session that has read `tokens` after `first` others.
    pub(super) fn set_history(&mut self, first: u64, tokens: &[u32]) {
        let arena = self.engine.arena_mut();
        let history = arena.tensor_mut::<u32>(HISTORY);
        history.fill(0);
        let rows = history.len();
        let skip = tokens.len().saturating_sub(rows);
        for (index, &token) in tokens.iter().enumerate().skip(skip) {
            history[((first + index as u64) % rows as u64) as usize] = token;
        }
        arena.tensor_mut::<u64>(super::HEADER)[0] = first + tokens.len() as u64;
    }
}

fn unsound(file: &StateFile, index: usize) -> Error {
    let reason = format!("record {index} holds a value that is not finite");
    bad(file.path(), reason)
}

/// The bytes of the tensors that later tokens overwrite, each with its padding.
fn padded_state(plan: &StatePlan) -> u64 {
    let bytes = plan.present().map(|part| padded(part.len() as u64));
    bytes.map(|bytes| bytes.unwrap_or(0)).sum()
}

/// How a tensor's rows follow the tokens.
fn rows_of(tensor: &StateTensor) -> Option<Rows> {
    let mut sizes = tensor.shape.iter().enumerate();
    sizes.find_map(|(dimension, size)| {
        let tokens = match size {
            Size::Fixed(_) => return None,
            Size::Context => 1,
            Size::ContextBlocks(tokens) => *tokens,
        };
        Some(Rows { dimension, tokens })
    })
}

/// A tensor without the sizes that depend on the session: the context's and the history's.
fn layout(entry: &TensorEntry) -> TensorEntry {
    let mut entry = entry.clone();
    if let Some(rows) = entry.rows
        && let Some(size) = entry.shape.get_mut(rows.dimension)
    {
        *size = 0;
    }
    if (entry.layer, &*entry.name) == (None, "history") {
        entry.shape.clear();
    }
    entry
}
