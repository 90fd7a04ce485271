//! A conversation in a session. Whenever the conversation grows, the model's template renders all messages again, and the session
//! continues from the deepest state whose tokens are a prefix of the rendering.

use std::sync::Arc;

use super::note::{Generated, Note};
use super::{HistoryRead, Session, ThoughtOptions};
use crate::error::{Error, Result};
use crate::sampler::SamplerState;
use crate::state::Snapshot;
use crate::text::{
    AnswerSyntax, History, Message, Remembered, Role, Run, Runs, TemplateOptions, Turns,
};

/// A conversation. Each call takes its session. Messages may be edited, removed and replaced freely: a call reads only tokens that no
/// available state has read.
#[derive(Clone)]
pub struct Chat {
    turns: Turns,
    messages: Vec<Message>,
    /// Tokens before the first message: a text whose state was read before.
    before: Vec<u32>,
    /// Texts with their tokens. An answer keeps the tokens that the model generated.
    runs: Runs,
    /// The generated tokens of the answers in `messages`.
    answers: Vec<Generated>,
    /// Where the answer to be generated next begins.
    answer: Option<Answer>,
    /// The random number state after each number of messages; [`Chat::undo`] returns to it.
    random: Vec<(usize, SamplerState)>,
}

/// The beginning of an answer: its position in the session.
#[derive(Clone)]
struct Answer {
    position: u64,
    /// The text between the last special token and the answer.
    tail: Run,
}

impl Chat {
    /// Creates an empty conversation in `session`, in ChatML if the model has no chat template. Fails if the model has no tokenizer or
    /// its template cannot be used.
    pub fn new(session: &Session) -> Result<Self> {
        let model = session.model();
        // Comes first: a model without a tokenizer has no template either, and the tokenizer's error suggests a remedy.
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
            before: Vec::new(),
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

    /// The token that ends an answer in the template; generation should stop there.
    pub fn end_token(&self) -> Option<u32> {
        self.turns.end_token()
    }

    /// Whether the template requests a thought before the answer; `None` leaves the choice to the template.
    pub fn thinking(&self) -> Option<bool> {
        self.turns.options().thinking
    }

    /// Sets whether the template requests a thought before the answer, from the next message on. A template without a [thinking
    /// switch](Chat::has_thinking_switch) ignores the setting.
    pub fn set_thinking(&mut self, thinking: Option<bool>) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.thinking = thinking;
        self.turns.set_options(options)
    }

    /// Whether [`Chat::set_thinking`] has an effect: the template renders a question differently with thinking on and off.
    ///
    /// # Errors
    /// [`Error::Template`] if the template cannot render a question.
    pub fn has_thinking_switch(&self) -> Result<bool> {
        self.turns.has_thinking_switch()
    }

    /// Sets the functions that the model may call, as JSON schemas, from the next message on. A template that does not list them gets
    /// instructions at the end of the system message, or before the first user message, which are no part of [`Chat::messages`].
    ///
    /// # Errors
    /// [`Error::Template`] if the template fails, or if it leaves out messages; nothing changes then.
    pub fn set_tools(&mut self, tools: Vec<serde_json::Value>) -> Result<()> {
        let mut turns = self.turns.clone();
        let mut options = turns.options().clone();
        options.tools = tools;
        turns.set_options(options)?;
        turns.check_tools()?;
        self.turns = turns;
        Ok(())
    }

    /// How the model writes its next answer, for an [`AnswerParser`](crate::AnswerParser).
    ///
    /// # Errors
    /// [`Error::Template`] if the template cannot render a question.
    pub fn answer_syntax(&self) -> Result<AnswerSyntax> {
        self.turns.answer_syntax()
    }

    /// Whether the template lists tools, and so knows calls and their results. Other templates know both as text only.
    pub fn lists_tools(&self) -> bool {
        self.turns.lists_tools()
    }

    /// Converts messages to tokens.
    fn history(&self, messages: &[Message], reply: bool) -> Result<History> {
        let mut history = self.turns.history(messages, reply, &self.runs)?;
        if let Some(first) = self.before.first() {
            // A text begins once.
            let skip = usize::from(history.tokens.first() == Some(first));
            let shift = self.before.len() - skip;
            history.tokens.splice(..skip, self.before.iter().copied());
            history.borders.iter_mut().for_each(|it| *it += shift);
            history.instructions += shift;
        }
        Ok(history)
    }

    /// Sets tokens that come before the first message, such as those of a state file, from the next message on.
    pub fn set_before(&mut self, tokens: Vec<u32>) {
        self.before = tokens;
    }

    /// Sets a variable of the template from the next message on; null leaves it undefined.
    ///
    /// # Errors
    /// [`Error::Invalid`] names a variable that cannot be set or whose value has the wrong type, [`Error::Template`] if the template
    /// fails with it.
    pub fn set_variable(&mut self, name: &str, value: serde_json::Value) -> Result<()> {
        let mut options = self.turns.options().clone();
        options.set(name, value)?;
        self.turns.set_options(options)
    }

    /// Whether the template opens a thought at the start of an answer, so that the model generates only the rest of it.
    pub fn opens_thought(&self) -> Result<bool> {
        self.turns.opens_thought()
    }

    /// The thought with which the next answer may begin, for [`crate::GenerateOptions::thought`].
    ///
    /// # Errors
    /// [`Error::Template`] if the template cannot render a question.
    pub fn thought(&self) -> Result<ThoughtOptions> {
        ThoughtOptions::of_turns(&self.turns)
    }

    /// The text that the template writes before the first user message of a conversation without instructions.
    pub fn beginning(&self) -> Result<String> {
        self.turns.beginning()
    }

    /// Sets the instructions (the system message); an empty text removes them. They are read with the next message.
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
            self.history(&asked, true)?;
        }
        self.messages = messages;
        Ok(())
    }

    /// Adds a user message and reads it; the answer is generated next. `progress(read, of)` is called while tokens are read. If the
    /// message cannot be read completely, the conversation is unchanged.
    ///
    /// # Errors
    /// See [`Chat::set_messages`]. After [`Error::Device`] the session is unusable, but the messages remain, and a snapshot can be
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

    /// Replaces the conversation with `messages` and brings the session to the state that has read them. A history that grew, was
    /// edited, lost its thinking text or comes from another process is read only from the end of the deepest available state on. If the
    /// last message is an answer, the next generation continues it. `progress(read, of)` is called while tokens are read.
    ///
    /// # Errors
    /// [`Error::Template`] if the template refuses the messages, [`Error::Invalid`], [`Error::Tokenizer`], and the errors of
    /// [`Session::read_history`]. The conversation is then unchanged, and the tokens read so far can be reused.
    pub fn set_messages(
        &mut self,
        session: &mut Session,
        messages: Vec<Message>,
        progress: impl FnMut(usize, usize),
    ) -> Result<HistoryRead> {
        self.turns.set_canceller(session.canceller());
        if messages.iter().all(|message| message.role == Role::System) {
            // Instructions alone are read later, with the first message.
            let read = session.read_history(&[])?;
            self.replace_messages(messages);
            self.answer = None;
            return Ok(read);
        }
        let history = self.history(&messages, true)?;
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

    /// Replaces the messages and forgets the tokens of answers that changed or are gone.
    fn replace_messages(&mut self, messages: Vec<Message>) {
        let before = std::mem::replace(&mut self.messages, messages);
        let is_same = |index: usize| before.get(index) == self.messages.get(index);
        self.answers.retain(|answer| is_same(answer.message));
    }

    /// Whether the session has read the messages, so that the next generation is the answer to them.
    pub fn awaits_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// Adds generated text to the conversation, as the answer to the last message, or as its continuation if that message is an answer.
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

    /// Stores the tokens that the model generated for an answer.
    fn remember(&mut self, session: &Session, begun: &Answer, answer: &str) {
        let message = self.messages.len() - 1;
        self.answers.retain(|answer| answer.message != message);
        let tokens = session.tokens_since(begun.position);
        let remembered = tokens.and_then(|tokens| {
            self.turns
                .remember(&self.runs, &begun.tail, answer, &tokens)
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

    /// Removes the last user message and everything after it, and restores the random numbers. Returns the message, if there was one.
    ///
    /// # Errors
    /// See [`Chat::set_messages`].
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
            self.history(rest, answered)?
        };
        // The session had also read the tokens with which the model ended the previous answer.
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

    /// Forgets all messages except the instructions at the beginning.
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

    /// A snapshot of the conversation: the session's state, with the messages and the sampling parameters as its note.
    pub fn snapshot(&self, session: &Session) -> Result<Snapshot> {
        let mut snapshot = session.snapshot()?;
        snapshot.note = self.note(session)?;
        Ok(snapshot)
    }

    /// The messages and the sampling parameters in the form of a [`Chat::snapshot`] note.
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
            before: self.before.clone(),
        };
        serde_json::to_vec(&note).map_err(|e| Error::invalid("the conversation", e.to_string()))
    }

    /// Restores a conversation from a snapshot. On error, conversation and session are unchanged.
    pub fn restore(&mut self, session: &mut Session, snapshot: &Snapshot) -> Result<()> {
        let tokenizer = session.model().tokenizer()?;
        let note = Note::read(&snapshot.note, &tokenizer)?;
        let turns = self.turns_of(session, &note)?;
        let (params, random) = (session.sampler().clone(), session.random());
        // Comes first, because the restored state contains its random number state.
        session.set_sampler(note.sampler)?;
        if let Err(error) = session.restore(snapshot) {
            session.set_sampler(params)?;
            session.set_random(random);
            return Err(error);
        }
        self.before = note.before;
        self.continue_with(turns, note.messages, note.answers);
        Ok(())
    }

    /// Restores a conversation from a snapshot's note alone; its messages are read with the next one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `note` is not a conversation's note; conversation and session are then unchanged.
    pub fn restore_note(&mut self, session: &mut Session, note: &[u8]) -> Result<()> {
        let tokenizer = session.model().tokenizer()?;
        let note = Note::read(note, &tokenizer)?;
        let turns = self.turns_of(session, &note)?;
        session.set_sampler(note.sampler)?;
        self.before = note.before;
        self.continue_with(turns, note.messages, note.answers);
        Ok(())
    }

    fn continue_with(&mut self, turns: Turns, messages: Vec<Message>, answers: Vec<Generated>) {
        for answer in &answers {
            self.runs.set(&answer.run, &answer.tokens);
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
