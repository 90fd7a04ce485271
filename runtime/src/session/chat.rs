//! A conversation in a session: its messages, rendered whole by the model's template whenever something follows. The session goes on from
//! the deepest state that the rendering begins with.

use std::sync::Arc;

use super::note::{Generated, Note};
use super::{HistoryRead, Session};
use crate::error::{Error, Result};
use crate::sampler::SamplerState;
use crate::state::Snapshot;
use crate::text::{History, Message, Remembered, Role, Run, Runs, TemplateOptions, Turns};

/// A conversation. Its session is given to each call. Messages may be edited, taken back and exchanged at will: what a call reads is
/// only what no state at hand has read.
#[derive(Clone)]
pub struct Chat {
    turns: Turns,
    messages: Vec<Message>,
    /// Texts with their tokens; those of answers are the ones that the model generated.
    runs: Runs,
    /// Those of the answers in `messages`.
    answers: Vec<Generated>,
    /// Where the answer that is generated next begins.
    answer: Option<Answer>,
    /// The random numbers after messages were read: where the messages before each are again, they go on from there.
    random: Vec<(usize, SamplerState)>,
}

/// The beginning of an answer.
#[derive(Clone)]
struct Answer {
    position: u64,
    /// The text after the last special token before it.
    tail: Run,
}

impl Chat {
    /// An empty conversation in `session`, in ChatML if the model has no chat template. Fails if the model has no tokenizer or
    /// a template that cannot be used.
    pub fn new(session: &Session) -> Result<Self> {
        let model = session.model();
        // First: without one there is no template either, and its error says what to do.
        let tokenizer = model.tokenizer()?;
        let template = Arc::new(model.chat_template_or_chatml()?);
        let options = TemplateOptions::default();
        let turns = Turns::with_options(template, tokenizer, options, session.canceller())?;
        Ok(Self::from_turns(turns))
    }

    fn from_turns(turns: Turns) -> Self {
        Chat {
            turns,
            messages: Vec::new(),
            runs: Runs::default(),
            answers: Vec::new(),
            answer: None,
            random: Vec::new(),
        }
    }

    /// The messages.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The token with which the template closes an answer: generation should stop there.
    pub fn end_token(&self) -> Option<u32> {
        self.turns.end_token()
    }

    /// Whether the template requests a thought before the answer; none: as the template does by default.
    pub fn thinking(&self) -> Option<bool> {
        self.turns.options().thinking
    }

    /// Sets, from the next message on, whether the template requests a thought before the answer. A template without
    /// [such a switch](Chat::has_thinking_switch) ignores it.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.thinking = thinking;
        self.turns.set_options(options)
    }

    /// Whether the template has a switch for [`Chat::set_thinking`]: with it on and off, a question is rendered differently.
    ///
    /// # Errors
    /// [`Error::Template`] if the template cannot render a question.
    pub fn has_thinking_switch(&self) -> Result<bool> {
        self.turns.has_thinking_switch()
    }

    /// Names the functions that the model may call, as JSON schemas, from the next message on.
    pub fn set_tools(&mut self, tools: Vec<serde_json::Value>) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.tools = tools;
        self.turns.set_options(options)
    }

    /// Whether the template begins an answer inside of a thought, so that only its end is generated.
    pub fn opens_thought(&self) -> Result<bool> {
        self.turns.opens_thought()
    }

    /// The template's text before the first message of the user, where there are no instructions.
    pub fn beginning(&self) -> Result<String> {
        self.turns.beginning()
    }

    /// Sets the instructions ahead of the conversation; an empty text removes them. They are read with the next message.
    ///
    /// # Errors
    /// [`Error::Invalid`] after the first message, [`Error::Template`] if the template has no system message.
    pub fn set_system(&mut self, text: &str) -> Result<()> {
        if self
            .messages
            .iter()
            .any(|message| message.role != Role::System)
        {
            return Err(Error::invalid(
                "system message",
                "it must come before the first message",
            ));
        }
        let mut messages = Vec::new();
        if !text.is_empty() {
            messages.push(Message::new(Role::System, text));
            let asked = [messages[0].clone(), Message::new(Role::User, "question")];
            self.turns.history(&asked, true, &mut self.runs)?;
        }
        self.messages = messages;
        Ok(())
    }

    /// Adds a message of the user's and reads it; the answer is generated next. `progress(read, of)` is called while tokens are read. If
    /// the message cannot be read as a whole, it was not sent.
    ///
    /// # Errors
    /// As [`Chat::set_messages`]. After [`Error::Device`] the session cannot go on; what was said is still here, and a snapshot can be
    /// restored into a session on another device or on the CPU.
    pub fn send(
        &mut self,
        session: &mut Session,
        text: &str,
        progress: impl FnMut(usize, usize),
    ) -> Result<HistoryRead> {
        let mut messages = self.messages.clone();
        messages.push(Message::new(Role::User, text));
        self.set_messages(session, messages, progress)
    }

    /// The conversation becomes `messages`, and the session one that has read them, whatever they were before: a history that grew, was
    /// edited, lost its thinking text or comes from another process is read from where the states at hand end. If the last message is
    /// an answer, the next generation goes on with it. `progress(read, of)` is called while tokens are read.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the messages, [`Error::Invalid`], [`Error::Tokenizer`]; those of
    /// [`Session::read_history`]. The conversation is as it was then; of the tokens that the session has read nothing is lost.
    pub fn set_messages(
        &mut self,
        session: &mut Session,
        messages: Vec<Message>,
        progress: impl FnMut(usize, usize),
    ) -> Result<HistoryRead> {
        self.turns.set_canceller(session.canceller());
        if messages.iter().all(|message| message.role == Role::System) {
            // Instructions are read with the first message.
            let read = session.read_history(&[])?;
            self.replace_messages(messages);
            self.answer = None;
            return Ok(read);
        }
        let history = self.turns.history(&messages, true, &mut self.runs)?;
        session.keep_first(history.instructions);
        let read = session.read_history_with(&history.tokens, &history.borders, progress)?;
        self.replace_messages(messages);
        self.answer = Some(Answer {
            position: session.position(),
            tail: history.tail,
        });
        let count = self.messages.len();
        self.random.retain(|&(before, _)| before < count);
        self.random.push((count, session.random()));
        Ok(read)
    }

    /// The tokens of answers that are no longer there are forgotten.
    fn replace_messages(&mut self, messages: Vec<Message>) {
        let before = std::mem::replace(&mut self.messages, messages);
        let is_same = |index: usize| before.get(index) == self.messages.get(index);
        self.answers.retain(|answer| is_same(answer.message));
    }

    /// True if the session has read the messages and the next generation is the answer to them.
    pub fn awaits_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// Takes what was generated into the conversation, as the answer to the last message, or as the rest of it if that is an answer.
    pub fn answered(&mut self, session: &mut Session, answer: &str) -> Result<()> {
        match self.messages.last_mut() {
            None => return Err(Error::invalid("answer", "there is no message to answer")),
            Some(last) if last.role == Role::Assistant => last.content.push_str(answer),
            Some(_) => self.messages.push(Message::new(Role::Assistant, answer)),
        }
        if let Some(begun) = self.answer.take() {
            self.remember(session, &begun, answer);
        }
        session.checkpoint()
    }

    /// Keeps the tokens that the model generated for an answer.
    fn remember(&mut self, session: &Session, begun: &Answer, answer: &str) {
        let message = self.messages.len() - 1;
        self.answers.retain(|answer| answer.message != message);
        let tokens = session.tokens_since(begun.position);
        let remembered = tokens.and_then(|tokens| {
            self.turns
                .remember(&mut self.runs, &begun.tail, answer, &tokens)
        });
        if let Some(Remembered { run, tokens, end }) = remembered {
            self.answers.push(Generated {
                message,
                run,
                tokens,
                end,
            });
        }
    }

    /// Takes back the last message of the user and what follows it, random numbers too; returns the message, if there was one.
    ///
    /// # Errors
    /// As [`Chat::set_messages`].
    pub fn undo(&mut self, session: &mut Session) -> Result<Option<String>> {
        let last = self
            .messages
            .iter()
            .rposition(|message| message.role == Role::User);
        let Some(last) = last else {
            return Ok(None);
        };
        let rest = &self.messages[..last];
        let mut history = if rest.iter().all(|message| message.role == Role::System) {
            History::default()
        } else {
            let answered = rest.last().is_some_and(|last| last.role == Role::Assistant);
            self.turns.history(rest, answered, &mut self.runs)?
        };
        // The session had read the tokens with which the model ended the answer before.
        let mut answers = self.answers.iter();
        if let Some(before) =
            answers.find(|answer| answer.message + 1 == last && answer.run == history.tail)
        {
            history.tokens.extend_from_slice(&before.end);
        }
        session.read_history(&history.tokens)?;
        self.answer = None;
        self.answers.retain(|answer| answer.message < last);
        if let Some(&(_, random)) = self.random.iter().find(|(count, _)| *count == last + 1) {
            session.set_random(random);
        }
        self.random.retain(|&(count, _)| count <= last);
        let taken = self.messages.drain(last..).next();
        Ok(taken.map(|message| message.content))
    }

    /// Forgets all but the instructions ahead of the conversation.
    pub fn clear(&mut self, session: &mut Session) -> Result<()> {
        session.reset()?;
        let others = self
            .messages
            .iter()
            .position(|message| message.role != Role::System);
        self.messages
            .truncate(others.unwrap_or(self.messages.len()));
        self.answers.clear();
        self.answer = None;
        Ok(())
    }

    /// The whole conversation as a value: the state of the session, with the messages and the sampling parameters as
    /// its note.
    pub fn snapshot(&self, session: &Session) -> Result<Snapshot> {
        let mut snapshot = session.snapshot()?;
        snapshot.note = self.note(session)?;
        Ok(snapshot)
    }

    /// The messages and the sampling parameters, as the note of [`Chat::snapshot`] holds them.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they cannot be written as JSON.
    pub fn note(&self, session: &Session) -> Result<Vec<u8>> {
        let note = Note {
            messages: self.messages.clone(),
            sampler: session.sampler().clone(),
            thinking: self.thinking(),
            tools: self.turns.options().tools.clone(),
            answers: self.answers.clone(),
        };
        serde_json::to_vec(&note).map_err(|e| Error::invalid("the conversation", e.to_string()))
    }

    /// Continues a conversation from a value. On an error conversation and session are as they were.
    pub fn restore(&mut self, session: &mut Session, snapshot: &Snapshot) -> Result<()> {
        let tokenizer = session.model().tokenizer()?;
        let note = Note::read(&snapshot.note, &tokenizer)?;
        let turns = self.turns_of(session, &note)?;
        let (params, random) = (session.sampler().clone(), session.random());
        // First, since the state that is restored has its own random numbers.
        session.set_sampler(note.sampler)?;
        if let Err(error) = session.restore(snapshot) {
            session.set_sampler(params)?;
            session.set_random(random);
            return Err(error);
        }
        self.continue_with(turns, note.messages, note.answers);
        Ok(())
    }

    /// Continues a conversation from the note of a value alone: its messages are read with the next one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is no such note; conversation and session are as they were.
    pub fn restore_note(&mut self, session: &mut Session, note: &[u8]) -> Result<()> {
        let tokenizer = session.model().tokenizer()?;
        let note = Note::read(note, &tokenizer)?;
        let turns = self.turns_of(session, &note)?;
        session.set_sampler(note.sampler)?;
        self.continue_with(turns, note.messages, note.answers);
        Ok(())
    }

    fn continue_with(&mut self, turns: Turns, messages: Vec<Message>, answers: Vec<Generated>) {
        for answer in &answers {
            self.runs.set(answer.run.clone(), answer.tokens.clone());
        }
        (self.turns, self.messages, self.answers) = (turns, messages, answers);
        self.answer = None;
        self.random.clear();
    }

    fn turns_of(&self, session: &Session, note: &Note) -> Result<Turns> {
        let mut turns = self.turns.clone();
        turns.set_canceller(session.canceller());
        let mut options = turns.options().clone();
        options.thinking = note.thinking;
        options.tools.clone_from(&note.tools);
        turns.set_options(options)?;
        Ok(turns)
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
