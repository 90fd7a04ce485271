//! Conversations that are kept in the user's state folder, those of each model apart.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::ZonedDateTime;
use waterline::Model;

use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::text::shown_line;
use crate::units;

/// Conversations that are kept automatically, for each model.
const KEPT: usize = 20;
/// Larger states are not written after every answer.
const LARGEST: usize = 64 << 20;
/// How the name of a conversation begins that was kept automatically.
const AUTOMATIC: &str = "auto-";
const EXTENSION: &str = "state";

/// The user's folder for what the program remembers.
pub fn state_folder() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute());
    let state =
        given.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("waterline"))
}

/// A conversation in a file.
pub struct Saved {
    /// The file.
    pub path: PathBuf,
    /// When it was written.
    pub written: SystemTime,
    /// Its size.
    pub bytes: u64,
}

impl Saved {
    /// The first words of the conversation, or the name it was given.
    pub fn title(&self) -> String {
        title_of(&self.path)
    }

    /// When it was written, as people say it: `24 Nov 03:15`.
    pub fn when(&self) -> String {
        ZonedDateTime::try_from(self.written).map_or_else(
            |_| "at an unknown time".into(),
            |time| time.strftime("%-d %b %H:%M").to_string(),
        )
    }

    /// A line of a list.
    pub fn line(&self) -> String {
        let size = units::bytes(self.bytes as usize);
        format!(
            "{:<12}  {:<34} {size:>8}",
            self.when(),
            shown_line(&self.title(), 34)
        )
    }
}

/// The kept conversations of one model, and the file of the present one.
pub struct Sessions {
    /// None if nothing is to be kept.
    folder: Option<PathBuf>,
    /// Where the present conversation is kept after each answer.
    automatic: Option<PathBuf>,
    /// The file in which an earlier chat kept it, until it has one of its own: that chat may still be going on.
    earlier: Option<PathBuf>,
    /// The file that the user gave it.
    pub named: Option<PathBuf>,
}

impl Sessions {
    /// The conversations with `model`.
    pub fn of(model: &Model) -> Self {
        let name = format!("{}-{:016x}", slug(model.name()), model.fingerprint());
        Sessions {
            folder: state_folder().map(|state| state.join("sessions").join(name)),
            automatic: None,
            earlier: None,
            named: None,
        }
    }

    /// All of them but the present one, the newest first.
    pub fn list(&self) -> Vec<Saved> {
        let entries = self.folder.iter().filter_map(|f| std::fs::read_dir(f).ok());
        let saved = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.ok()?.path();
            let about = std::fs::metadata(&path).ok()?;
            let is_saved = path.extension().is_some_and(|kind| kind == EXTENSION);
            (is_saved && about.is_file()).then_some(Saved {
                written: about.modified().ok()?,
                bytes: about.len(),
                path,
            })
        };
        let mut list: Vec<Saved> = entries.flatten().filter_map(saved).collect();
        let own = [&self.automatic, &self.earlier];
        list.retain(|saved| own.iter().all(|path| path.as_ref() != Some(&saved.path)));
        list.sort_by_key(|saved| std::cmp::Reverse(saved.written));
        list
    }

    /// Another conversation begins: it gets a file of its own with its first answer.
    pub fn begin(&mut self) {
        (self.automatic, self.earlier, self.named) = (None, None, None);
    }

    /// The conversation in `path` goes on: what the user saved stays in its file, what was kept moves to a new one.
    pub fn resume(&mut self, path: PathBuf) {
        self.begin();
        match is_automatic(&path) && self.has(&path) {
            true => self.earlier = Some(path),
            false => self.named = Some(path),
        }
    }

    /// Whether a file is one of those in the user's folder, which have titles.
    pub fn has(&self, path: &Path) -> bool {
        self.folder.is_some() && path.parent() == self.folder.as_deref()
    }

    /// From now on the conversation is kept in `path`, which is not removed when there are many.
    pub fn pin(&mut self, path: &Path) {
        let before = self.automatic.replace(path.into());
        if let Some(before) = before.filter(|before| before != path) {
            // What cannot be removed is a copy too many.
            let _ = std::fs::remove_file(before);
        }
    }

    /// The file that the present conversation is kept in after each answer; exchanged where forks are.
    pub fn exchange_automatic(&mut self, other: Option<PathBuf>) -> Option<PathBuf> {
        std::mem::replace(&mut self.automatic, other)
    }

    /// Keeps the conversation, so that it can go on after a crash. An empty one is not kept, nor one whose state is large.
    pub fn keep(&mut self, conversation: &Conversation) -> Result<()> {
        let bytes = conversation.session().state_bytes();
        if conversation.messages().is_empty() || bytes > LARGEST || self.folder.is_none() {
            return Ok(());
        }
        let path = match &self.automatic {
            Some(path) => path.clone(),
            None => {
                let time = ZonedDateTime::now().strftime("%Y%m%d-%H%M%S");
                let path = self.free(&format!("{AUTOMATIC}{time}-{}", title(conversation)))?;
                self.automatic.insert(path).clone()
            }
        };
        conversation.snapshot()?.save(&path)?;
        if let Some(earlier) = self.earlier.take() {
            // What cannot be removed is a copy too many.
            let _ = std::fs::remove_file(earlier);
        }
        self.drop_oldest();
        Ok(())
    }

    /// A file in the folder for a conversation that the user saves.
    pub fn free_name(&self, conversation: &Conversation) -> Result<PathBuf> {
        self.free(&title(conversation))
    }

    /// A file called `name` that is not there yet; its folder is made.
    fn free(&self, name: &str) -> Result<PathBuf> {
        let folder = self
            .folder
            .as_ref()
            .ok_or_else(|| Error::usage("there is no home folder: give a file"))?;
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, e))?;
        let names = (1..).map(|n| match n {
            1 => name.to_string(),
            n => format!("{name}-{n}"),
        });
        let mut paths = names.map(|name| folder.join(name).with_extension(EXTENSION));
        let free = paths.find(|path| !path.exists());
        free.ok_or_else(|| Error::input(folder, "no name is free"))
    }

    /// Removes the oldest of those kept automatically.
    fn drop_oldest(&self) {
        let list = self.list().into_iter();
        let automatic = list.filter(|saved| is_automatic(&saved.path));
        for old in automatic.skip(KEPT) {
            // One that cannot be removed does no harm.
            let _ = std::fs::remove_file(old.path);
        }
    }
}

/// The title of the conversation in a file of the user's folder.
pub fn title_of(path: &Path) -> String {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let words = match name.strip_prefix(AUTOMATIC) {
        // The date and the time stand before the words.
        Some(rest) => rest.splitn(3, '-').nth(2).unwrap_or(rest),
        None => &name,
    };
    words.replace('-', " ")
}

fn is_automatic(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with(AUTOMATIC)
}

/// The first words that were said, as part of a file's name.
fn title(conversation: &Conversation) -> String {
    let first = conversation.first_message().unwrap_or_default();
    slug(first)
}

/// The first words of a text in small letters and hyphens.
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
    match slug.is_empty() {
        true => "conversation".into(),
        false => slug,
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
