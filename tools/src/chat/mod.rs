//! `waterline chat`: a conversation, on a terminal or through a pipe.

mod attached;
mod clipboard;
mod commands;
mod completion;
mod conversation;
mod edit;
mod export;
mod forks;
mod gauge;
mod help;
mod input;
mod screen;
mod sessions;
mod settings;
mod status;
mod tools;
mod wrap;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use waterline::{Canceller, PrefixStore, PrefixStoreOptions, StateFile};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::grammar::GrammarArgs;
use crate::interrupt::{INTERRUPTED, on_interrupt};
use crate::run::ROOM;
use crate::sampling::SamplingArgs;
use crate::session::{DraftArgs, LimitArgs, SessionArgs, beyond_training};
use crate::template_args::TemplateArgs;
use crate::text::NO_TEMPLATE;
use attached::Attached;
use commands::{Action, Commands};
use conversation::{Conversation, Reply};
use input::{Input, Line};
use screen::Screen;
use sessions::{Kept, Sessions};

/// Chat with a model.
///
/// On a terminal, /help lists the commands and Ctrl-C stops an answer. Through a pipe, each line is a message, only answers go
/// to standard output, and the exit status is 1 if any message or command failed. To send a message that begins with a slash,
/// type a second slash or put the message in """.
///
/// Conversations on a terminal are saved below $XDG_STATE_HOME, %LOCALAPPDATA% (Windows) or ~/.local/state, readable only by
/// their owner: always the messages as JSON, and the state if it takes at most 64 MiB.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Instructions for the model (system prompt).
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    system: Option<String>,
    /// Turn thinking before answers on or off, if the chat template has a switch for it.
    #[arg(long, value_name = "on|off", value_parser = settings::thinking)]
    thinking: Option<bool>,
    #[command(flatten)]
    template: TemplateArgs,
    /// A command that the model may call under this name. It runs after you agree and reads the call's arguments as JSON from
    /// standard input; its output is the result. May be repeated.
    #[arg(long = "tool", value_name = "NAME=COMMAND")]
    tools: Vec<tools::Tool>,
    /// File for the history of typed lines.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Continue the last conversation with this model.
    #[arg(long)]
    resume: bool,
    /// Continue from a state file that waterline read wrote: the conversation follows its text.
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    state: Option<PathBuf>,
    /// Save nothing: neither the typed lines nor the conversation, so that nothing can be resumed.
    #[arg(long, conflicts_with = "history")]
    private: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    form: GrammarArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

/// Memory for the states to which /undo, /regen and dropped thoughts return.
const STORE_BYTES: usize = 512 << 20;

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut screen = Screen::new();
    let conversation = open(args, args.model.as_deref(), &mut screen)?;
    let mut input = Input::new(args.history.clone(), args.private, &mut screen)?;
    let mut talk = Talk {
        args,
        commands: Commands::new(Sessions::new(conversation.session().model())),
        keeps: screen.interactive() && !args.private,
        ends_at_signal: Arc::new(AtomicBool::new(true)),
        canceller: Arc::new(Mutex::new(conversation.session().canceller())),
        warned: false,
        said: false,
        conversation,
    };
    // While a line is read, Ctrl-C is a key, so a signal is SIGTERM or SIGHUP. Through a pipe every signal ends the program.
    let ends = talk.ends_at_signal.clone();
    let canceller = talk.canceller.clone();
    on_interrupt(move || match canceller.lock() {
        Ok(canceller) if !ends.load(Ordering::SeqCst) => canceller.cancel(),
        _ => std::process::exit(INTERRUPTED.into()),
    })?;
    if screen.interactive() {
        screen.notice(&status::banner(&talk.conversation, &talk.commands.sessions))?;
    }
    if args.resume {
        talk.commands
            .run("resume", &mut talk.conversation, &mut screen)?;
    }
    let failed = talk.converse(&mut input, &mut screen)?;
    Ok(ExitCode::from(u8::from(failed && !screen.interactive())))
}

/// Opens a conversation with the model at `path`, or with the built-in model.
fn open(args: &Args, path: Option<&Path>, screen: &mut Screen) -> Result<Conversation> {
    let session = args.session.with_drafts(args.drafts);
    let model = args.open.for_sessions(&session).model(path)?;
    let mut options = PrefixStoreOptions::default();
    let state = args.state.as_deref().map(StateFile::open).transpose()?;
    let state = state.map(Arc::new);
    options.bytes = STORE_BYTES + state.as_ref().map_or(0, |state| state.bytes() as usize);
    let store = PrefixStore::new(options)?;
    let session = match &state {
        Some(state) => session.with_context(state.tokens().len() + ROOM),
        None => session,
    };
    let session = session.open_with_store(&model, args.sampling.params(&model), store)?;
    let mut conversation = Conversation::new(session, &args.limits)?;
    if let Some(state) = state {
        conversation.set_state(state)?;
    }
    if let Some(system) = &args.system {
        conversation.set_system(system)?;
    }
    for (name, value) in args.template.variables()? {
        conversation.set_variable(name, value)?;
    }
    conversation.set_thinking(args.thinking)?;
    conversation.set_form(&args.form)?;
    conversation.set_tools(&args.tools)?;
    if !model.has_chat_template() {
        screen.notice(NO_TEMPLATE)?;
    }
    Ok(conversation)
}

/// A conversation and its commands.
struct Talk<'a> {
    args: &'a Args,
    conversation: Conversation,
    commands: Commands,
    /// Whether the conversation is saved after each answer.
    keeps: bool,
    /// Set once the warning about the model's training length was shown.
    warned: bool,
    /// Set while a signal ends the program rather than an answer.
    ends_at_signal: Arc<AtomicBool>,
    /// Cancels the work of the present session.
    canceller: Arc<Mutex<Canceller>>,
    /// Set once the notice that only the messages are saved was shown.
    said: bool,
}

impl Talk<'_> {
    /// Reads and answers lines until the input ends. Returns whether any line failed.
    fn converse(&mut self, input: &mut Input, screen: &mut Screen) -> Result<bool> {
        let mut failed = false;
        loop {
            self.conversation.session().canceller().clear();
            self.ends_at_signal.store(true, Ordering::SeqCst);
            let line = input.next(screen, self.commands.forks.names())?;
            let answers = screen.interactive();
            self.ends_at_signal.store(!answers, Ordering::SeqCst);
            let (line, quoted) = match line {
                Line::Text(line) => (line, false),
                Line::Quoted(line) => (line, true),
                Line::Unreadable(error) => {
                    screen.problem(&error)?;
                    failed = true;
                    continue;
                }
                Line::Hint => {
                    screen.notice("Ctrl-C again or Ctrl-D leaves.")?;
                    continue;
                }
                Line::End => return Ok(failed),
            };
            if line.trim().is_empty() {
                continue;
            }
            match self.answer(line, quoted, screen) {
                Ok(true) => {}
                Ok(false) => return Ok(failed),
                // The terminal is gone.
                Err(error @ Error::Stdout(_)) => return Err(error),
                Err(error) => {
                    screen.problem(&error)?;
                    failed = true;
                }
            }
        }
    }

    /// Handles a line. Returns whether the conversation continues. A quoted line, or one after a second slash, is a message.
    fn answer(&mut self, line: String, quoted: bool, screen: &mut Screen) -> Result<bool> {
        let action = match line.strip_prefix('/').filter(|_| !quoted) {
            Some(message) if message.starts_with('/') => Action::Say(message.into()),
            Some(command) => self.commands.run(command, &mut self.conversation, screen)?,
            None => Action::Say(line),
        };
        let reply = match action {
            Action::Say(text) => self.say(&text, screen),
            Action::Again => self.conversation.say_again(None, screen),
            Action::Instead(text) => self.conversation.say_again(Some(text), screen),
            Action::Model(path) => {
                self.change_model(&path, screen)?;
                return Ok(true);
            }
            Action::Done => return Ok(true),
            Action::Quit => return Ok(false),
        };
        if screen.interactive() {
            if let Ok(reply) = &reply {
                self.show_reply(reply, screen)?;
            }
            self.keep(screen)?;
        }
        reply.map(|_| true)
    }

    /// Sends a message after the texts of files, which stay for the next message if this one is not sent.
    fn say(&mut self, text: &str, screen: &mut Screen) -> Result<Reply> {
        let before = self.conversation.messages().len();
        let text = self.commands.attached.message(text);
        let reply = self.conversation.say(&text, screen);
        if self.conversation.messages().len() > before {
            self.commands.attached = Attached::default();
        }
        reply
    }

    /// Continues the conversation with another model, which reads the messages with the next one. On an error the present model stays.
    fn change_model(&mut self, path: &Path, screen: &mut Screen) -> Result<()> {
        if self.args.state.is_some() {
            return Err(Error::usage(
                "/model: the file of --state belongs to the present model",
            ));
        }
        let mut other = open(self.args, Some(path), screen)?;
        other.continue_from(&self.conversation)?;
        if let Ok(mut canceller) = self.canceller.lock() {
            *canceller = other.session().canceller();
        }
        self.commands.sessions = Sessions::new(other.session().model());
        self.conversation = other;
        let messages = self.conversation.messages().len();
        let name = self.conversation.session().model().file();
        screen.notice(&format!(
            "{name}: {messages} messages are read with the next one"
        ))
    }

    /// Shows the notices below an answer.
    fn show_reply(&mut self, reply: &Reply, screen: &mut Screen) -> Result<()> {
        screen.notice(&status::after(&self.conversation, reply))?;
        if let Some(warning) = status::nearly_full(&self.conversation) {
            screen.notice(&warning)?;
        }
        let session = self.conversation.session();
        match beyond_training(session.model(), session.position()) {
            Some(warning) if !std::mem::replace(&mut self.warned, true) => screen.notice(&warning),
            _ => Ok(()),
        }
    }

    /// Saves the conversation, so that it survives a crash. If saving fails, reports the reason once and stops saving.
    fn keep(&mut self, screen: &mut Screen) -> Result<()> {
        if !self.keeps {
            return Ok(());
        }
        match self.commands.sessions.keep(&self.conversation) {
            Err(error) => {
                self.keeps = false;
                screen.notice(&format!("the conversation is not saved: {error}"))
            }
            Ok(Kept::Nothing) => {
                self.keeps = false;
                screen.notice("the conversation is not kept: there is no home folder")
            }
            Ok(Kept::Messages) if !std::mem::replace(&mut self.said, true) => screen.notice(
                "the state takes more than 64 MiB: the messages alone are kept, and read again by --resume",
            ),
            Ok(_) => Ok(()),
        }
    }
}
