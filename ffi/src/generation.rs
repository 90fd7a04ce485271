//! A running generation of a session: its pieces, its callbacks, and its end.

use std::ffi::{c_char, c_void};
use std::time::{Duration, Instant};

use waterline::{
    AnswerSyntax, Finish, GenerateOptions, Generation, HistoryRead, Piece, Role, Session, Start,
    ThoughtOptions, ThoughtTags, Tools,
};

use crate::chat::continued;
use crate::generate::{wl_finish, wl_generate_result, wl_text_fn};
use crate::hooks::Hooks;
use crate::open_session::Inner;
use crate::params;
use crate::status::{Failure, Outcome, wl_status};

/// A generation that has begun.
pub(crate) struct Running {
    generation: Generation,
    hooks: Hooks,
    logprobs: bool,
    /// Set by a callback: no token follows.
    stopped: bool,
    /// The reason why no token could be chosen in a batch.
    failed: Option<Failure>,
    /// The text generated so far, if it is the answer in a conversation.
    answer: Option<String>,
    /// How the model writes the text.
    syntax: AnswerSyntax,
    /// The text that the answer continues.
    before: String,
    /// The last piece, with a zero byte after it.
    piece: String,
    finish: Option<wl_finish>,
    prompt: HistoryRead,
    prompt_time: Duration,
    time: Duration,
}

impl Running {
    /// Records how the message was read, and the time it took.
    pub fn prompt(&mut self, read: HistoryRead, time: Duration) {
        (self.prompt, self.prompt_time) = (read, time);
    }

    /// Returns the syntax of the text, and the beginning of the answer that it continues.
    pub fn syntax(&self) -> (&AnswerSyntax, &str) {
        (&self.syntax, &self.before)
    }

    /// Whether the end has not been reported yet.
    pub fn is_running(&self) -> bool {
        self.finish.is_none()
    }

    /// Returns the next piece with text, or the piece after which a callback stops the generation.
    fn next(&mut self, session: &mut Session) -> Option<waterline::Result<Piece>> {
        let clock = Instant::now();
        let next = loop {
            let mut next = self.hooks.next(&mut self.generation, session);
            let Some(Ok(piece)) = &mut next else {
                break next;
            };
            self.stopped = self.hooks.show(piece);
            if self.stopped || !piece.text.is_empty() {
                break next;
            }
        };
        self.time += clock.elapsed();
        next
    }

    /// Stores a piece, and appends it to the answer.
    fn keep(&mut self, piece: Piece) {
        self.piece = piece.text;
        if let Some(answer) = &mut self.answer {
            answer.push_str(&self.piece);
        }
        self.piece.push('\0');
    }

    /// Returns false after a token could not be chosen in a batch.
    pub fn goes_on(&self) -> bool {
        self.failed.is_none()
    }

    /// Returns the last piece: a pointer to its bytes, with a zero byte after them, and their number.
    pub fn piece(&self) -> (*const c_char, usize) {
        (self.piece.as_ptr().cast(), self.piece.len() - 1)
    }

    fn result(&self) -> wl_generate_result {
        wl_generate_result {
            size: 0,
            finish: self.finish.unwrap_or(wl_finish::WL_FINISH_CANCELLED) as u32,
            tokens: self.generation.tokens() as u64,
            prompt_tokens: self.prompt.read as u64,
            prompt_seconds: self.prompt_time.as_secs_f64(),
            seconds: self.time.as_secs_f64(),
            reused_tokens: self.prompt.reused as u64,
        }
    }
}

impl Inner {
    /// Prepares a generation. It is the answer in the conversation if `sends` is true or messages await an answer.
    pub fn prepare(
        &mut self,
        (mut options, hooks): (GenerateOptions, Hooks),
        sends: bool,
    ) -> Outcome<Running> {
        let chat = self.chat.as_ref();
        let chat = chat.filter(|chat| sends || chat.awaits_answer());
        if let Some(chat) = chat.filter(|_| options.stop_at_eos) {
            options.stop_tokens.extend(chat.end_token());
        }
        let last = chat.and_then(|chat| chat.messages().last());
        let goes_on = !sends && last.is_some_and(|last| last.role == Role::Assistant);
        let syntax = match chat {
            Some(chat) => chat.answer_syntax()?,
            None => plain(),
        };
        if chat.is_some() && !goes_on {
            let budget = options.thought.and_then(|thought| thought.budget);
            let mut thought = ThoughtOptions::new(syntax.tags, syntax.start == Start::Thought);
            thought.budget = budget;
            options.thought = Some(thought);
        }
        if !syntax.tools.0.is_empty() {
            let tokenizer = self.session.model().tokenizer()?;
            let marks = syntax.marks().into_iter();
            let marks = marks.filter_map(|mark| tokenizer.token_id(mark));
            options.shown_tokens.extend(marks);
        }
        let before = chat.filter(|_| goes_on).map_or("", continued).to_string();
        let logprobs = options.logprobs;
        let mut generation = Generation::new(self.session.model(), options)?;
        if let Some(form) = self.form.clone() {
            generation.constrain(form);
        }
        let answer = chat.map(|_| String::new());
        let prompt = self.prompt.take().filter(|_| answer.is_some());
        let prompt = prompt.unwrap_or_default();
        Ok(Running {
            generation: match hooks.on_logits {
                Some(_) => generation,
                None => generation.with_drafts(&self.session),
            },
            hooks,
            logprobs,
            stopped: false,
            failed: None,
            answer,
            syntax,
            before,
            piece: String::new(),
            finish: None,
            prompt: prompt.0,
            prompt_time: prompt.1,
            time: Duration::ZERO,
        })
    }

    /// Generates the next piece and stores it; returns false at the end.
    pub fn advance(&mut self) -> Outcome<bool> {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        if let Some(failure) = running.failed.take() {
            self.end(wl_finish::WL_FINISH_CANCELLED)?;
            return Err(failure);
        }
        if running.finish.is_some() {
            return Ok(false);
        }
        if running.stopped {
            self.end(wl_finish::WL_FINISH_CALLBACK)?;
            return Ok(false);
        }
        match running.next(&mut self.session) {
            Some(Ok(piece)) if piece.text.is_empty() => {
                self.end(wl_finish::WL_FINISH_CALLBACK)?;
                Ok(false)
            }
            Some(Ok(piece)) => {
                running.keep(piece);
                Ok(true)
            }
            Some(Err(error)) => {
                self.end(wl_finish::WL_FINISH_CANCELLED)?;
                Err(error.into())
            }
            None => {
                let finish = finish(running.generation.finish());
                self.end(finish)?;
                Ok(false)
            }
        }
    }

    /// Returns true if the generation takes its next token from a batch; otherwise it has ended or failed.
    pub fn wants_token(&mut self) -> Outcome<bool> {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        if running.hooks.on_logits.is_some() || running.logprobs {
            return Err(Failure::new(
                wl_status::WL_ERROR_UNSUPPORTED,
                "a batch does not support log-probabilities or on_logits",
            ));
        }
        running.generation.leave(&mut self.session)?;
        if running.failed.is_some() {
            return Ok(false);
        }
        if running.finish.is_none() && !running.stopped && running.generation.wants_token() {
            if !self.session.canceller().take() {
                return Ok(true);
            }
            self.end(wl_finish::WL_FINISH_CANCELLED)?;
            return Ok(false);
        }
        // Only the end can follow.
        self.advance()?;
        Ok(false)
    }

    /// True if the next token is chosen under a constraint.
    pub fn needs_choice(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| running.generation.needs_choice())
    }

    /// Chooses the next token for a batch; `None` on failure, which the next wl_generate_next reports.
    pub fn choose(&mut self) -> Option<u32> {
        let chosen = self.running.as_mut()?.generation.choose(&mut self.session);
        self.stepped(chosen)
    }

    /// Takes the outcome of a batch's step; `None` on failure, which the next wl_generate_next reports.
    pub fn stepped(&mut self, token: waterline::Result<u32>) -> Option<u32> {
        let running = self.running.as_mut()?;
        token
            .map_err(|error| running.failed = Some(error.into()))
            .ok()
    }

    /// Records a token that the session read in a batch step of this duration.
    pub fn take_token(&mut self, token: u32, time: Duration) -> Outcome {
        let running = self.running.as_mut().ok_or_else(no_generation)?;
        running.time += time;
        let mut piece = running.generation.push(token);
        running.stopped = running.hooks.show(&mut piece);
        running.keep(piece);
        match (running.generation.finish(), running.stopped) {
            (None, false) => Ok(()),
            (None, true) => self.end(wl_finish::WL_FINISH_CALLBACK),
            (ended, _) => self.end(finish(ended)),
        }
    }

    /// Ends the generation; the generated text becomes the answer.
    fn end(&mut self, finish: wl_finish) -> Outcome {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        running.finish = Some(finish);
        running.generation.leave(&mut self.session)?;
        let answer = running.answer.take();
        if let (Some(answer), Some(chat)) = (answer, &mut self.chat) {
            chat.answered(&mut self.session, &answer)?;
        }
        Ok(())
    }

    /// Ends a generation that was left unfinished.
    pub fn settle(&mut self) -> Outcome {
        if self.running.as_ref().is_some_and(|r| r.finish.is_none()) {
            self.end(wl_finish::WL_FINISH_CALLBACK)?;
        }
        self.running = None;
        Ok(())
    }

    /// Generates to the end, passing each piece to `on_text`.
    ///
    /// # Safety
    /// `on_text` can be called with `user`.
    pub unsafe fn generate(&mut self, on_text: wl_text_fn, user: *mut c_void) -> Outcome {
        while self.advance()? {
            let (Some(on_text), Some(running)) = (on_text, &self.running) else {
                continue;
            };
            let (piece, length) = running.piece();
            // SAFETY: the caller passes a function that can be called with `user`; the piece ends with a zero byte and outlives the call.
            if unsafe { on_text(piece, length, user) } != 0 {
                self.end(wl_finish::WL_FINISH_CALLBACK)?;
            }
        }
        Ok(())
    }

    /// Writes the result of the generation, unless `result` is NULL.
    ///
    /// # Safety
    /// `result` points to such a struct or is NULL.
    pub unsafe fn report(&self, result: *mut wl_generate_result) -> Outcome {
        match &self.running {
            // SAFETY: `write` checks the size stored in the struct; the caller passes such a struct.
            Some(running) if !result.is_null() => unsafe {
                params::write("wl_generate_result", result, running.result())
            },
            _ => Ok(()),
        }
    }
}

/// The syntax of a text that is no answer: all of it is content.
fn plain() -> AnswerSyntax {
    AnswerSyntax {
        format: None,
        tools: Tools::default(),
        tags: ThoughtTags::THINK,
        has_thoughts: false,
        start: Start::Content,
        keeps_thoughts: true,
    }
}

fn finish(finish: Option<Finish>) -> wl_finish {
    match finish {
        Some(Finish::End) => wl_finish::WL_FINISH_END,
        Some(Finish::Stop) => wl_finish::WL_FINISH_STOP,
        Some(Finish::Length) => wl_finish::WL_FINISH_LENGTH,
        Some(Finish::Cancelled) | None => wl_finish::WL_FINISH_CANCELLED,
    }
}

pub(crate) fn no_generation() -> Failure {
    Failure::argument("no generation has been started on this session, or another call ended it")
}
