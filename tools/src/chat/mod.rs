//! `waterline chat`: a conversation, on a terminal or through a pipe.

mod commands;
mod conversation;
mod input;
mod screen;
mod thoughts;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::builtin::open_model;
use crate::error::{Error, Result};
use crate::interrupt::on_interrupt;
use crate::sampling::SamplingArgs;
use crate::session::{LimitArgs, SessionArgs};
use crate::units;
use commands::{Action, Commands};
use conversation::{Conversation, Reply};
use input::{Input, Line};
use screen::Screen;

/// Talk with a model.
///
/// On a terminal /help lists the commands; Ctrl-C stops an answer. Through a pipe each line is a message, only answers
/// go to standard output, and the status is 1 if any message or command failed.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    model: Option<PathBuf>,
    /// Instructions ahead of the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Whether the model thinks before it answers, if its template has such a switch.
    #[arg(long, value_name = "on|off", value_parser = commands::thinking)]
    thinking: Option<bool>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Where to keep the lines that were typed.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
}

/// Memory for the states that /undo and /regen return to.
const MARK_BYTES: usize = 256 << 20;

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let model = open_model(args.model.as_deref())?;
    let session = args
        .session
        .open(&model, args.sampling.params(), MARK_BYTES)?;
    let mut conversation = Conversation::new(session, &args.limits)?;
    if let Some(system) = &args.system {
        conversation.set_system(system)?;
    }
    conversation.set_thinking(args.thinking)?;
    let mut screen = Screen::new();
    let mut input = Input::new(args.history.clone(), &mut screen)?;
    if screen.interactive() {
        let canceller = conversation.session().canceller();
        on_interrupt(move || canceller.cancel())?;
        banner(&conversation, &mut screen)?;
    }
    let failed = converse(&mut conversation, &mut input, &mut screen)?;
    Ok(ExitCode::from(u8::from(failed && !screen.interactive())))
}

fn banner(conversation: &Conversation, screen: &mut Screen) -> Result<()> {
    let session = conversation.session();
    let model = session.model();
    screen.notice(&format!(
        "{}: {} parameters, a session of {}, {}. /help lists the commands.",
        model.name(),
        units::count(model.spec().parameters()),
        units::bytes(session.state_bytes()),
        match session.threads() {
            1 => "1 thread".into(),
            threads => format!("{threads} threads"),
        }
    ))
}

/// Takes lines until there are no more. Returns whether one of them failed.
fn converse(
    conversation: &mut Conversation,
    input: &mut Input,
    screen: &mut Screen,
) -> Result<bool> {
    let mut commands = Commands::default();
    let mut failed = false;
    loop {
        conversation.session().canceller().clear();
        let line = match input.next(screen)? {
            Line::Text(line) => line,
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
        let action = match line.strip_prefix('/') {
            Some(command) => commands.run(command, conversation, screen),
            None => Ok(Action::Say(line)),
        };
        let result = match action {
            Ok(Action::Say(text)) => conversation
                .say(&text, screen)
                .and_then(|reply| show_reply(conversation, &reply, screen)),
            Ok(Action::Again) => conversation
                .say_again(screen)
                .and_then(|reply| show_reply(conversation, &reply, screen)),
            Ok(Action::Done) => Ok(()),
            Ok(Action::Quit) => return Ok(failed),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => {}
            // There is nobody to go on for.
            Err(error @ Error::Stdout(_)) => return Err(error),
            Err(error) => {
                screen.problem(&error)?;
                failed = true;
            }
        }
    }
}

/// What stands below an answer.
fn show_reply(conversation: &Conversation, reply: &Reply, screen: &mut Screen) -> Result<()> {
    if screen.interactive() {
        let session = conversation.session();
        screen.notice(&format!(
            "{}{} tokens, {:.1} ms/token, position {}, session {}",
            if reply.stopped { "stopped; " } else { "" },
            reply.tokens,
            reply.ms_per_token(),
            session.position(),
            units::bytes(session.state_bytes())
        ))?;
    }
    Ok(())
}
