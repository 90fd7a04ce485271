//! The keys of a GGUF file that begin with its architecture's name, with bounds on every number.

use waterline_quant::gguf::{Array, Gguf, Value};

use crate::config::LARGEST;
use crate::error::{Error, Result};

/// The keys of one file, named without the architecture's prefix.
pub(super) struct Keys<'a> {
    gguf: &'a Gguf,
    architecture: &'a str,
    /// Whether the block that predicts the token after the next one is read.
    pub mtp: bool,
}

impl<'a> Keys<'a> {
    pub fn new(gguf: &'a Gguf, architecture: &'a str, mtp: bool) -> Self {
        Keys {
            gguf,
            architecture,
            mtp,
        }
    }

    /// The file.
    pub fn gguf(&self) -> &Gguf {
        self.gguf
    }

    /// The file's `general.architecture`.
    pub fn architecture(&self) -> &str {
        self.architecture
    }

    /// Whether the file has a tensor of this name.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.gguf.has_tensor(name)
    }

    fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.gguf.get(&self.full(key))
    }

    /// The value at a key, if it exists.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.get(key)
    }

    /// The error for a `key` with an unexpected value.
    pub fn wrong(&self, key: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::Config {
            file: self.gguf.name().into(),
            key: self.full(key),
            found: found.to_string(),
            expected: expected.into(),
        }
    }

    /// The error for a well-formed model that cannot be run.
    pub fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::Unsupported {
            file: self.gguf.name().into(),
            what: what.into(),
        }
    }

    fn bounded(&self, key: &str, number: usize) -> Result<usize> {
        if number <= LARGEST {
            Ok(number)
        } else {
            Err(self.wrong(key, number, format!("a number up to {LARGEST}")))
        }
    }

    /// A width or count.
    pub fn usize(&self, key: &str) -> Result<usize> {
        self.bounded(key, self.gguf.get_usize(&self.full(key))?)
    }

    /// Like [`Keys::usize`], for a key that may be missing.
    pub fn optional_usize(&self, key: &str) -> Result<Option<usize>> {
        self.get(key).map(|_| self.usize(key)).transpose()
    }

    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.optional_usize(key)?.unwrap_or(default))
    }

    /// A finite number.
    pub fn f32(&self, key: &str) -> Result<f32> {
        let number = self.gguf.get_f32(&self.full(key))?;
        if number.is_finite() {
            Ok(number)
        } else {
            Err(self.wrong(key, number, "a finite number"))
        }
    }

    pub fn optional_f32(&self, key: &str) -> Result<Option<f32>> {
        self.get(key).map(|_| self.f32(key)).transpose()
    }

    pub fn f32_or(&self, key: &str, default: f32) -> Result<f32> {
        Ok(self.optional_f32(key)?.unwrap_or(default))
    }

    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            Some(_) => Ok(self.gguf.get_bool(&self.full(key))?),
            None => Ok(default),
        }
    }

    pub fn optional_str(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            Some(_) => Ok(Some(self.gguf.get_str(&self.full(key))?)),
            None => Ok(None),
        }
    }

    /// Number of layers: all blocks except the last ones, which predict further tokens.
    pub fn layers(&self) -> Result<usize> {
        let blocks = self.blocks()?;
        let further = self.usize_or("nextn_predict_layers", 0)?;
        match blocks.checked_sub(further) {
            Some(layers) => Ok(layers),
            None => Err(self.wrong(
                "nextn_predict_layers",
                further,
                format!("at most the number of blocks, {blocks}"),
            )),
        }
    }

    /// The number of the block that predicts the token after the next one, if it is read.
    pub fn mtp_block(&self) -> Result<Option<usize>> {
        const KEY: &str = "nextn_predict_layers";
        match self.optional_usize(KEY)? {
            _ if !self.mtp => Ok(None),
            Some(1) => self.layers().map(Some),
            None => Err(self.wrong(
                KEY,
                "nothing",
                "1, a block for drafts in this file or in an mtp-*.gguf next to it",
            )),
            Some(further) => Err(self.wrong(KEY, further, "1, a block for drafts")),
        }
    }

    fn blocks(&self) -> Result<usize> {
        let (blocks, tensors) = (self.usize("block_count")?, self.gguf.tensors().len());
        if blocks <= tensors {
            Ok(blocks)
        } else {
            Err(self.wrong(
                "block_count",
                blocks,
                format!("at most the number of tensors, {tensors}"),
            ))
        }
    }

    /// Number of blocks to read.
    fn read(&self) -> Result<usize> {
        Ok(self.layers()? + usize::from(self.mtp_block()?.is_some()))
    }

    /// One number per layer, from a single number or a list with one per block. The last blocks are left out, unless such a
    /// block is read.
    pub fn per_layer(&self, key: &str) -> Result<Vec<usize>> {
        let (blocks, layers) = (self.blocks()?, self.read()?);
        let Some(list) = self.get(key).and_then(Value::as_array) else {
            return Ok(vec![self.usize(key)?; layers]);
        };
        let numbers = list.to_i64s().filter(|numbers| numbers.len() == blocks);
        let Some(numbers) = numbers else {
            let found = format!("a list of {} elements", list.len());
            return Err(self.wrong(
                key,
                found,
                format!("a whole number for each of the {blocks} blocks"),
            ));
        };
        let number = |&number: &i64| match usize::try_from(number) {
            Ok(number) => self.bounded(key, number),
            Err(_) => Err(self.wrong(key, number, "numbers of 0 or more")),
        };
        numbers[..layers].iter().map(number).collect()
    }

    /// The whole numbers of a list; empty if the key is missing.
    pub fn numbers(&self, key: &str) -> Result<Vec<usize>> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let numbers = value.as_array().and_then(Array::to_i64s);
        let whole = |numbers: Vec<i64>| {
            let numbers = numbers.into_iter().map(|n| usize::try_from(n).ok());
            numbers.collect::<Option<Vec<_>>>()
        };
        let expected = "a list of whole numbers";
        numbers
            .and_then(whole)
            .ok_or_else(|| self.wrong(key, "a value of another type", expected))
    }

    /// Whether `key` is a list.
    pub fn is_list(&self, key: &str) -> bool {
        self.get(key)
            .is_some_and(|value| value.as_array().is_some())
    }

    /// A list of one flag per block, if the key exists. The last blocks are left out.
    pub fn optional_flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let (blocks, layers) = (self.blocks()?, self.layers()?);
        let flags = match value.as_array() {
            Some(Array::Bool(flags)) => Some(flags.clone()),
            Some(list) => list
                .to_i64s()
                .map(|list| list.into_iter().map(|n| n != 0).collect()),
            None => None,
        };
        match flags.filter(|flags| flags.len() == blocks) {
            Some(flags) => Ok(Some(flags[..layers].to_vec())),
            None => Err(self.wrong(
                key,
                "a value of another type",
                format!("true or false for each of the {blocks} blocks"),
            )),
        }
    }

    /// Which layers have a window: as listed in the file, or all but every n-th, where n is `pattern` or the file's number.
    pub fn slides(&self, pattern: usize) -> Result<Vec<bool>> {
        self.slides_but(pattern, |layer, n| n == 0 || (layer + 1).is_multiple_of(n))
    }

    /// Like [`Keys::slides`], but the first of every n layers has no window.
    pub fn slides_after_first(&self, pattern: usize) -> Result<Vec<bool>> {
        self.slides_but(pattern, |layer, n| layer.is_multiple_of(n))
    }

    /// Which layers have a window: as listed in the file, or those that are not `full` for n, which is `pattern` or the file's number.
    fn slides_but(&self, pattern: usize, full: fn(usize, usize) -> bool) -> Result<Vec<bool>> {
        const KEY: &str = "attention.sliding_window_pattern";
        if self.is_list(KEY) {
            return Ok(self.optional_flags(KEY)?.unwrap_or_default());
        }
        let pattern = self.usize_or(KEY, pattern)?;
        let layers = 0..self.layers()?;
        Ok(layers.map(|layer| !full(layer, pattern)).collect())
    }

    /// The epsilon of the norms, which a file may give for layer norms only.
    pub fn norm_eps(&self) -> Result<f32> {
        const USUAL: &str = "attention.layer_norm_rms_epsilon";
        match self.optional_f32(USUAL)? {
            Some(eps) => Ok(eps),
            None => match self.optional_f32("attention.layer_norm_epsilon")? {
                Some(eps) => Ok(eps),
                None => self.f32(USUAL),
            },
        }
    }

    /// Number of experts of a mixture; 0 or 1 for a model without mixtures.
    pub fn experts(&self) -> Result<usize> {
        // Models without mixtures have this key too, so it is always read.
        self.per_layer_or("expert_used_count", 0)?;
        self.usize_or("expert_count", 0)
    }

    /// Like [`Keys::per_layer`], for a key that may be missing.
    pub fn per_layer_or(&self, key: &str, default: usize) -> Result<Vec<usize>> {
        match self.get(key) {
            Some(_) => self.per_layer(key),
            None => Ok(vec![default; self.read()?]),
        }
    }
}
