//! Conversations saved in the user's state folder, in one folder per model.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::ZonedDateTime;
use waterline::{Model, Snapshot};
use waterline_quant::{NewFile, create_private_folder};

use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::text::shown_line;
use crate::units;

/// Number of automatically saved conversations to keep for each model.
const KEPT: usize = 20;
/// Above this size the state is not written after each answer, only the messages.
const LARGEST: u64 = 64 << 20;
/// File name prefix of automatically saved conversations.
const AUTOMATIC: &str = "auto-";
/// Extension of files with a state and its messages.
const EXTENSION: &str = "state";
/// Extension of files with messages only.
const MESSAGES: &str = "json";

/// The outcome of saving a conversation.
pub enum Kept {
    /// Nothing was saved: there is no home folder.
    Nothing,
    /// Only the messages were saved.
    Messages,
    /// The messages and the state were saved.
    Whole,
}

/// The user's folder for the program's state.
pub fn state_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let absolute = |name: &str| set(name).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| absolute("LOCALAPPDATA"))
        .or_else(|| Some(set("HOME")?.join(".local/state")))?;
    Some(state.join("waterline"))
}

/// A conversation in a file.
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// The modification time.
    pub written: SystemTime,
    /// The file's size.
    pub bytes: u64,
}

impl Saved {
    /// The conversation in the file at `path`, if it holds one.
    fn at(path: PathBuf) -> Option<Self> {
        let kind = path.extension()?;
        // The messages are also inside the state's file, so they are not listed twice.
        let is_saved =
            kind == EXTENSION || kind == MESSAGES && !path.with_extension(EXTENSION).exists();
        let about = std::fs::metadata(&path).ok()?;
        (is_saved && about.is_file()).then_some(Saved {
            written: about.modified().ok()?,
            bytes: about.len(),
            path,
        })
    }

    /// The first words of the conversation, or the name it was given.
    pub fn title(&self) -> String {
        title_of(&self.path)
    }

    /// The modification time for display: `24 Nov 03:15`.
    pub fn when(&self) -> String {
        ZonedDateTime::try_from(self.written).map_or_else(
            |_| "at an unknown time".into(),
            |time| time.strftime("%-d %b %H:%M").to_string(),
        )
    }

    /// The conversation's line in a list.
    pub fn line(&self) -> String {
        let size = units::bytes(self.bytes as usize);
        format!(
            "{:<12}  {:<34} {size:>8}",
            self.when(),
            shown_line(&self.title(), 34)
        )
    }
}

/// The saved conversations with one model, and the files of the present one.
pub struct Sessions {
    /// `None` if nothing is saved.
    folder: Option<PathBuf>,
    /// The file to which the present conversation is saved after each answer.
    automatic: Option<PathBuf>,
    /// The automatic file of an earlier chat, until this chat has a file: the earlier chat may still be running.
    earlier: Option<PathBuf>,
    /// The file that the user chose for the conversation.
    pub named: Option<PathBuf>,
}

impl Sessions {
    /// Finds the folder of conversations with `model`.
    pub fn new(model: &Model) -> Self {
        let name = format!("{}-{:016x}", slug(model.name()), model.label());
        Sessions {
            folder: state_folder().map(|state| state.join("sessions").join(name)),
            automatic: None,
            earlier: None,
            named: None,
        }
    }

    /// Lists all saved conversations but the present one, newest first.
    pub fn list(&self) -> Vec<Saved> {
        let entries = self.folder.iter().filter_map(|f| std::fs::read_dir(f).ok());
        let saved = |entry: std::io::Result<std::fs::DirEntry>| Saved::at(entry.ok()?.path());
        let mut list: Vec<Saved> = entries.flatten().filter_map(saved).collect();
        let own = [&self.automatic, &self.earlier];
        let is_own = |saved: &Saved| {
            let stem = saved.path.with_extension(EXTENSION);
            own.iter().any(|path| path.as_ref() == Some(&stem))
        };
        list.retain(|saved| !is_own(saved));
        list.sort_by_key(|saved| std::cmp::Reverse(saved.written));
        list
    }

    /// The present conversation, if it is saved in the user's folder.
    pub fn present(&self) -> Option<Saved> {
        let own = [&self.automatic, &self.named].into_iter().flatten();
        let path = own.clone().find(|path| self.has(path))?;
        Saved::at(path.clone()).or_else(|| Saved::at(path.with_extension(MESSAGES)))
    }

    /// Starts another conversation, which gets a new file with its first answer.
    pub fn begin(&mut self) {
        (self.automatic, self.earlier, self.named) = (None, None, None);
    }

    /// Continues the conversation in `path`: it keeps a file that the user chose, and moves from an automatic file to a new one.
    fn take_over(&mut self, path: PathBuf) {
        self.begin();
        if is_automatic(&path) && self.has(&path) {
            self.earlier = Some(path.with_extension(EXTENSION))
        } else {
            self.named = Some(path)
        }
    }

    /// Continues the conversation in `path`. If this session cannot hold the state (another context or type of cache),
    /// or if newer messages were saved after it, only the messages are restored, and read with the next one.
    pub fn open(&mut self, path: &Path, conversation: &mut Conversation) -> Result<String> {
        let messages_only = match Snapshot::load(path) {
            Ok(snapshot) => {
                let newer = self.newer_messages(path);
                let reason = match conversation.restore(&snapshot) {
                    Err(Error::Library(waterline::Error::Snapshot { reason, .. }))
                        if conversation.session().is_of_model(&snapshot) =>
                    {
                        Some(reason)
                    }
                    other => {
                        other?;
                        newer.as_ref().map(|_| "their state was not kept".into())
                    }
                };
                if reason.is_some() {
                    conversation.restore_note(newer.as_ref().unwrap_or(&snapshot.note))?;
                }
                reason
            }
            Err(error) => match self.messages(path) {
                Some(note) => {
                    conversation.restore_note(&note)?;
                    Some("only messages are kept".into())
                }
                None => return Err(error.into()),
            },
        };
        self.take_over(path.to_path_buf());
        let messages = conversation.messages().len();
        let mut said = match messages_only {
            None => {
                let read = conversation.session().position();
                format!("{}: {read} tokens, {messages} messages", self.name(path))
            }
            Some(reason) => format!(
                "{}: {messages} messages, which are read with the next one: {reason}",
                self.name(path)
            ),
        };
        for message in conversation.messages().iter().rev().take(2).rev() {
            said += &format!(
                "\n{}: {}",
                message.role.name(),
                shown_line(&message.content, 100)
            );
        }
        Ok(said)
    }

    /// The display name of a conversation's file: its title, or else its path.
    pub fn name(&self, path: &Path) -> String {
        if self.has(path) {
            format!("\"{}\"", title_of(path))
        } else {
            path.display().to_string()
        }
    }

    /// Whether `path` is in the user's folder, whose files have titles.
    pub fn has(&self, path: &Path) -> bool {
        self.folder.is_some() && path.parent() == self.folder.as_deref()
    }

    /// Saves the conversation to `path` from now on. That file is never removed automatically.
    pub fn pin(&mut self, path: &Path) {
        let before = self.automatic.replace(path.into());
        if let Some(before) = before.filter(|before| before != path) {
            remove(&before);
        }
    }

    /// Replaces the file of the present conversation, when forks are switched. Returns the previous file.
    pub fn exchange_automatic(&mut self, other: Option<PathBuf>) -> Option<PathBuf> {
        std::mem::replace(&mut self.automatic, other)
    }

    /// Saves the conversation, so that it survives a crash: the messages, and the state unless it is large. An empty
    /// conversation is not saved.
    pub fn keep(&mut self, conversation: &Conversation) -> Result<Kept> {
        if self.folder.is_none() {
            return Ok(Kept::Nothing);
        }
        if conversation.messages().is_empty() {
            return Ok(Kept::Whole);
        }
        let path = match &self.automatic {
            Some(path) => path.clone(),
            None => {
                let time = ZonedDateTime::now().strftime("%Y%m%d-%H%M%S");
                let path = self.free(&format!("{AUTOMATIC}{time}-{}", title(conversation)))?;
                self.automatic.insert(path).clone()
            }
        };
        let messages = path.with_extension(MESSAGES);
        let write = || -> std::io::Result<()> {
            let note = conversation.note().map_err(std::io::Error::other)?;
            let mut file = NewFile::create_private(&messages)?;
            file.write_all(&note)?;
            file.finish()
        };
        write().map_err(|error| Error::io(&messages, error))?;
        let snapshot = conversation.snapshot()?;
        let is_small = snapshot.file_bytes() <= LARGEST;
        if is_small {
            snapshot.save(&path)?;
        } else {
            // A leftover older state would be resumed in its place.
            let _ = std::fs::remove_file(&path);
        }
        if let Some(earlier) = self.earlier.take() {
            remove(&earlier);
        }
        self.drop_oldest();
        Ok(if is_small {
            Kept::Whole
        } else {
            Kept::Messages
        })
    }

    /// The messages of a saved conversation whose state cannot be used.
    fn messages(&self, path: &Path) -> Option<Vec<u8>> {
        let path = path.with_extension(MESSAGES);
        waterline_quant::read_file(&path, 1 << 28)
            .ok()
            .filter(|_| self.has(&path))
    }

    /// The messages of a saved conversation if they are newer than its state: the program ended between the two writes.
    fn newer_messages(&self, path: &Path) -> Option<Vec<u8>> {
        let written = |path: &Path| std::fs::metadata(path).and_then(|about| about.modified());
        let messages = written(&path.with_extension(MESSAGES)).ok()?;
        (messages > written(path).ok()?).then(|| self.messages(path))?
    }

    /// Removes a saved conversation.
    pub fn delete(&self, saved: &Saved) -> Result<()> {
        std::fs::remove_file(&saved.path).map_err(|e| Error::io(&saved.path, e))?;
        remove(&saved.path);
        Ok(())
    }

    /// Renames a saved conversation, which exempts it from automatic removal.
    pub fn rename(&self, saved: &Saved, name: &str) -> Result<PathBuf> {
        let free = self.free(&slug(name))?;
        for extension in [EXTENSION, MESSAGES] {
            let (from, to) = (
                saved.path.with_extension(extension),
                free.with_extension(extension),
            );
            if from.exists() {
                std::fs::rename(&from, to).map_err(|e| Error::io(&from, e))?;
            }
        }
        Ok(free)
    }

    /// The saved conversation with this title, as printed when it was saved.
    pub fn titled(&self, title: &str) -> Option<PathBuf> {
        let title = title.trim_matches('"');
        let present = self.present().into_iter();
        let mut all = present.chain(self.list());
        all.find(|saved| saved.title() == title)
            .map(|saved| saved.path)
    }

    /// A free file name in the user's folder for a conversation that the user saves.
    pub fn free_name(&self, conversation: &Conversation) -> Result<PathBuf> {
        self.free(&title(conversation))
    }

    /// A path for `name` that does not exist yet. Creates the folder.
    fn free(&self, name: &str) -> Result<PathBuf> {
        let folder = self
            .folder
            .as_ref()
            .ok_or_else(|| Error::usage("there is no home folder: give a file"))?;
        create_private_folder(folder).map_err(|e| Error::io(folder, e))?;
        let names = (1..).map(|n| match n {
            1 => name.to_string(),
            n => format!("{name}-{n}"),
        });
        let mut paths = names.map(|name| folder.join(name).with_extension(EXTENSION));
        let taken = |path: &Path| path.exists() || path.with_extension(MESSAGES).exists();
        let free = paths.find(|path| !taken(path));
        free.ok_or_else(|| Error::input(folder, "no free file name was found"))
    }

    /// Removes the oldest automatically saved conversations.
    fn drop_oldest(&self) {
        let list = self.list().into_iter();
        let automatic = list.filter(|saved| is_automatic(&saved.path));
        for old in automatic.skip(KEPT) {
            remove(&old.path);
        }
    }
}

/// Removes the files of a conversation. Errors are ignored: a leftover file is only a spare copy.
fn remove(path: &Path) {
    for extension in [EXTENSION, MESSAGES] {
        let _ = std::fs::remove_file(path.with_extension(extension));
    }
}

/// The title of the conversation in a file of the user's folder.
pub fn title_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let words = match name.strip_prefix(AUTOMATIC) {
        // The date and the time precede the words.
        Some(rest) => rest.splitn(3, '-').nth(2).unwrap_or(rest),
        None => &name,
    };
    words.replace('-', " ")
}

fn is_automatic(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(AUTOMATIC)
}

/// The user's first words, as part of a file name.
fn title(conversation: &Conversation) -> String {
    let first = conversation.first_message().unwrap_or_default();
    slug(first)
}

/// The first words of a text in lower case, joined by hyphens.
fn slug(text: &str) -> String {
    const LONGEST: usize = 40;
    let mut slug = String::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        let hyphen = usize::from(!slug.is_empty());
        if word.is_empty() {
            continue;
        }
        if slug.len() + hyphen + word.len() > LONGEST {
            break;
        }
        if hyphen > 0 {
            slug.push('-');
        }
        slug += &word.to_lowercase();
    }
    if slug.is_empty() {
        "conversation".into()
    } else {
        slug
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_words() {
        assert_eq!(slug("Tell me: a story?"), "tell-me-a-story");
        assert_eq!(slug("../../etc/passwd"), "etc-passwd");
        assert_eq!(slug("?!"), "conversation");
        assert_eq!(slug(&"long ".repeat(20)).len(), 39);
    }

    #[test]
    fn titles_are_the_words_again() {
        let saved = |name: &str| Saved {
            path: PathBuf::from(name),
            written: SystemTime::UNIX_EPOCH,
            bytes: 0,
        };
        let automatic = saved("x/auto-20261124-031502-tell-me-a-story.state");
        assert_eq!(automatic.title(), "tell me a story");
        assert_eq!(saved("tell-me.state").title(), "tell me");
    }
}
