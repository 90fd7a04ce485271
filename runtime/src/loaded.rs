//! A model bound to its weights; read-only and shared by any number of sessions.

use std::path::Path;
use std::sync::Arc;

use once_cell::sync::OnceCell;
use sha2::{Digest, Sha256};
use waterline_quant::{BF16, BF16_IN_BF16, Bytes, Tensor, ask_room};

use crate::constraint::Constraints;
use crate::error::{Error, Result};
use crate::lowering::WeightSource;
use crate::model::{
    Checkpoint, DEFAULT_TEMPLATE, Draft, LayerSpec, ModelSpec, OpenOptions, TextFiles, lower,
};
use crate::program::{Program, Schedule};
use crate::sampler::SamplerParams;
use crate::state::{Fingerprint, Identity, Size, StateOptions, StatePlan, Touched};
use crate::text::{ChatTemplate, Tokenizer, Turns};

/// Weights and description of a model, ready to run.
pub struct Model {
    file: String,
    name: String,
    spec: ModelSpec,
    program: Program,
    draft: Option<Draft>,
    identity: Arc<Identity>,
    /// Whether any matrix is in BF16.
    has_bf16: bool,
    files: TextFiles,
    trained_context: Option<usize>,
    notes: Vec<String>,
    tokenizer: OnceCell<Arc<Tokenizer>>,
    constraints: OnceCell<Arc<Constraints>>,
}

/// Estimated memory in bytes that a program needs per tensor.
const OF_TENSOR: usize = 1 << 10;

/// Whether a tensor is not a matrix, so that its values are copied into an op.
fn is_vector(tensor: &Tensor) -> bool {
    tensor.shape.len() != 2 || !tensor.format.is_integer_dot()
}

impl Model {
    /// Opens a GGUF file or a Hugging Face directory. The weights are mapped and used in place.
    pub fn open(path: impl AsRef<Path>) -> Result<Arc<Self>> {
        Self::bind(Checkpoint::open(path)?)
    }

    /// Like [`Model::open`], with options.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<Self>> {
        Self::bind(Checkpoint::open_with(path, options)?)
    }

    /// Like [`Model::open_with`], from a copy of the bytes of a GGUF file. Error messages call it `name`.
    pub fn from_bytes(bytes: &[u8], name: &str, options: &OpenOptions) -> Result<Arc<Self>> {
        let bytes = Bytes::copy_from(bytes)?;
        Self::bind(Checkpoint::from_bytes(bytes, name, options)?)
    }

    /// Binds an opened checkpoint.
    #[doc(hidden)]
    pub fn bind(checkpoint: Checkpoint) -> Result<Arc<Self>> {
        // Vectors are kept in f32 and copied once more during binding; an op takes a few hundred bytes.
        let vectors = checkpoint
            .tensors
            .values()
            .filter(|tensor| is_vector(tensor));
        let bytes: usize = vectors
            .map(|tensor| 2 * size_of::<f32>() * tensor.len())
            .sum();
        ask_room(bytes + checkpoint.tensors.len() * OF_TENSOR)?;
        let plan = checkpoint.spec.plan(&StateOptions::default())?;
        let own = plan
            .tensors()
            .iter()
            .take_while(|tensor| tensor.layer.is_none());
        let first_tensor = own.count();
        let source = WeightSource {
            file: &checkpoint.file,
            tensors: &checkpoint.tensors,
            hidden: checkpoint.spec.hidden,
            norm_eps: checkpoint.spec.norm_eps(),
        };
        let (program, draft) = lower(&source, &checkpoint.spec, first_tensor)?;
        let programs = [&program].into_iter();
        for program in programs.chain(draft.as_ref().map(|draft| &draft.program)) {
            program.validate(&checkpoint.file, &plan)?;
        }
        let is_bf16 = |tensor: &Tensor| [&BF16, &BF16_IN_BF16].contains(&tensor.format);
        Ok(Arc::new(Model {
            has_bf16: checkpoint.tensors.values().any(is_bf16),
            identity: Arc::new(checkpoint.identity()),
            file: checkpoint.file,
            name: checkpoint.name,
            spec: checkpoint.spec,
            program,
            draft,
            files: checkpoint.text,
            trained_context: checkpoint.trained_context,
            notes: checkpoint.notes,
            tokenizer: OnceCell::new(),
            constraints: OnceCell::new(),
        }))
    }

    /// Whether any matrix is in BF16.
    pub(crate) fn has_bf16(&self) -> bool {
        self.has_bf16
    }

    /// The file or directory of the model.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model's description and dimensions.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The model's program.
    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    /// The program for drafts, if the MTP block was opened.
    pub(crate) fn draft(&self) -> Option<&Draft> {
        self.draft.as_ref()
    }

    /// Bytes of weights that reading one token touches: every matrix once, and one row of the embedding.
    pub fn weight_bytes(&self) -> usize {
        self.program.weight_bytes()
    }

    /// The parts of the layers' state tensors that the token at `position` reads and writes.
    pub fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        self.program.touched(plan, position)
    }

    /// Bytes of the layers' state tensors that the token at `position` reads plus those that it writes.
    pub fn state_bytes(&self, plan: &StatePlan, position: u64) -> usize {
        let touched = self.touched(plan, position);
        touched.iter().map(Touched::bytes).sum()
    }

    /// The model's identity, which states refer to.
    #[doc(hidden)]
    pub fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// A hash that differs between models: SHA-256 of the description and of every byte of the tensors. The first call reads all tensors,
    /// unless an earlier run stored their digests in the user's cache folder.
    ///
    /// # Errors
    /// [`Error::Memory`].
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        self.identity.fingerprint()
    }

    /// A hash of the description and of the first bytes of each tensor, for names of folders and files. It reads little, but models that
    /// differ only after these bytes share it.
    pub fn label(&self) -> u64 {
        self.identity.label()
    }

    /// The state layout of a session on this model.
    pub fn plan(&self, options: &StateOptions) -> Result<StatePlan> {
        self.spec.plan(options)
    }

    /// The order in which the ops may run, with a state of this size.
    pub(crate) fn schedule(&self, options: &StateOptions) -> Result<Schedule> {
        Ok(Schedule::new(&self.program, &self.plan(options)?))
    }

    /// The model's text files.
    pub(crate) fn files(&self) -> &TextFiles {
        &self.files
    }

    /// The token that the tokenizer puts before plain text, if any.
    pub fn bos(&self) -> Option<u32> {
        self.files.begin()
    }

    /// The token that ends a document, if any.
    pub fn eos(&self) -> Option<u32> {
        self.files.eos
    }

    /// The tokens that end a generation, [`Model::eos`] among them.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.files.ends.iter().copied()
    }

    /// Length in tokens of the longest texts in training, if the files state it and attention reads the complete text. Answers beyond
    /// that length are unreliable.
    pub fn trained_context(&self) -> Option<usize> {
        self.trained_context.filter(|_| self.reads_context())
    }

    /// Sampling parameters for this model: the defaults of [`SamplerParams`], and over them the values that the files state
    /// (`general.sampling` keys of GGUF, `generation_config.json`). Each call draws a new seed.
    pub fn sampler(&self) -> SamplerParams {
        self.files.sampling.over(SamplerParams::default())
    }

    /// The sampling parameters that the files state, as `temperature 0.6, top_k 20`; empty if they state none.
    pub fn sampling(&self) -> String {
        self.files.sampling.to_string()
    }

    /// Whether some attention layer reads the complete context.
    pub fn reads_context(&self) -> bool {
        let mut tensors = self.spec.layers.iter().flat_map(LayerSpec::state);
        tensors.any(|tensor| tensor.shape.contains(&Size::Context))
    }

    /// Whether the first tokens of a full context can stay while the oldest ones are forgotten. Attention that reads means of complete
    /// blocks of its context forgets them like any others.
    pub fn keeps_first_tokens(&self) -> bool {
        let mut tensors = self.spec.layers.iter().flat_map(LayerSpec::state);
        let is_blocks = |size: &Size| matches!(size, Size::ContextBlocks(_));
        !tensors.any(|tensor| tensor.shape.iter().any(is_blocks))
    }

    /// Notes on the files for users, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the file has a tokenizer, even a broken one.
    pub fn has_tokenizer(&self) -> bool {
        self.files.tokenizer.is_some()
    }

    /// SHA-256 of the tokenizer's JSON text in hexadecimal, if the file has a tokenizer.
    pub fn tokenizer_hash(&self) -> Option<String> {
        let json = self.files.tokenizer.as_ref()?;
        Some(Fingerprint(Sha256::digest(json).into()).to_string())
    }

    /// The tokenizer, created on first use. Fails if the model has none, if it is broken, or if it can produce tokens beyond the model's
    /// vocabulary.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>> {
        let make = || -> Result<Arc<Tokenizer>> {
            let error = |reason: String| Error::Tokenizer {
                source_name: self.file.clone(),
                reason,
            };
            let json = self.files.tokenizer.as_ref().ok_or_else(|| {
                error(
                    "the model has no tokenizer; add tokenizer.json to its directory and convert it again"
                        .into(),
                )
            })?;
            let tokenizer = Tokenizer::for_rows(json, &self.file, self.spec.vocab)?;
            Ok(Arc::new(tokenizer))
        };
        self.tokenizer.get_or_try_init(make).cloned()
    }

    /// The compiler of constraints, created on first use. An answer ends with one of [`Model::ends`] or with the chat template's end token.
    ///
    /// # Errors
    /// The errors of [`Model::tokenizer`], [`Error::Invalid`] if the model has no end token, and [`Error::Unsupported`] in a build
    /// without the feature `constraints`.
    pub fn constraints(&self) -> Result<Arc<Constraints>> {
        let make = || {
            let tokenizer = self.tokenizer()?;
            // A template that cannot be used contributes no end token.
            let template = self.chat_template_or_chatml();
            let turns = template.and_then(|it| Turns::new(Arc::new(it), Arc::clone(&tokenizer)));
            let closing = turns.ok().and_then(|turns| turns.end_token());
            let ends = closing.into_iter().chain(self.ends()).collect();
            Constraints::new(&self.file, tokenizer, self.spec.vocab, ends)
        };
        self.constraints.get_or_try_init(make).cloned()
    }

    /// Whether the file has a chat template, even a broken one.
    pub fn has_chat_template(&self) -> bool {
        !self.files.templates.is_empty()
    }

    /// The chat template, or ChatML if the file has none. Fails if the file's template is broken.
    pub fn chat_template_or_chatml(&self) -> Result<ChatTemplate> {
        if self.has_chat_template() {
            self.chat_template()
        } else {
            ChatTemplate::chatml()
        }
    }

    /// The chat template, including the one for conversations with tools if the file has it. Fails if the model has none or it is broken.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        // A missing tokenizer is reported first: without it there is no text at all.
        let tokenizer = self.tokenizer()?;
        let source = self.files.chat_template().ok_or_else(|| {
            let names: Vec<&str> = self.files.templates.keys().map(String::as_str).collect();
            Error::Template {
                reason: if names.is_empty() {
                    format!(
                        "{} has no chat template: it can complete text (run), but not chat",
                        self.file
                    )
                } else {
                    format!(
                        "{} has several ({}), but none is called {DEFAULT_TEMPLATE}",
                        self.file,
                        names.join(", ")
                    )
                },
            }
        })?;
        let text = |name: &Option<String>, id: Option<u32>| match (name, id) {
            (Some(name), _) => name.clone(),
            (None, Some(id)) => String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(),
            (None, None) => String::new(),
        };
        let names = &self.files.names;
        let names = [
            text(&names.bos, self.files.bos),
            text(&names.eos, self.files.eos),
            text(&names.pad, None),
        ];
        let template = ChatTemplate::with_names(source, names)?;
        match self.files.templates.get("tool_use") {
            Some(source) => template.with_tool_use(source),
            None => Ok(template),
        }
    }
}
