//! The builder to which mixers and feed-forward networks write their ops.

mod products;
mod stream;
mod sublayer;

pub use sublayer::{NormKind, Sublayer};
use waterline_quant::Matrix;

use crate::error::{Error, Result};
use crate::functions::Norm;
use crate::operands::{INPUTS, RESIDUAL, View};
use crate::ops::{Emit, HeadGroup, HeadOp, Normalize, Op, Prepare};
use crate::program::Program;
use crate::weights::{Tensors, Vector, full_name};

/// The first buffer for the layers' own values; the buffers before it belong to the program.
pub(crate) const FIRST_FREE: usize = 3;

/// Name under which the tokens' embeddings are published.
pub(crate) const EMBEDDING: &str = "embedding";

/// How one part of a mixer that sums its parts reads the layer's input and adds its product.
#[derive(Debug, Clone, Copy)]
pub enum Sum {
    /// The product passes the part's norm `merge_norm.weight`, times this share.
    Normed {
        /// Multiplies the normed product.
        share: f32,
    },
    /// Input and product are multiplied.
    Multiplied {
        /// Multiplies the layer's normed input.
        input: f32,
        /// Multiplies the product.
        output: f32,
    },
}

/// A model's weights, and the settings common to all layers.
pub struct WeightSource<'a> {
    /// The file, for error messages.
    pub file: &'a str,
    /// The file's tensors.
    pub tensors: &'a Tensors,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The epsilon of the norms.
    pub norm_eps: f32,
}

/// The program of the layers so far.
pub(crate) struct Written {
    program: Program,
    /// Buffers that outlive their layer, by name.
    published: Vec<(String, View)>,
    /// For each layer, its first state tensor and the last later layer that reads its keys and values.
    layers: Vec<(usize, Option<usize>)>,
    /// Scale of the residual stream relative to its buffer; it only affects the norms' epsilon.
    stream: f32,
}

impl Written {
    /// Starts from a program without layers.
    pub fn new(program: Program) -> Self {
        Written {
            program,
            published: Vec::new(),
            layers: Vec::new(),
            stream: 1.0,
        }
    }

    /// Sets, for each layer, its first state tensor and the last later layer that reads its keys and values.
    pub(crate) fn set_layers(&mut self, layers: Vec<(usize, Option<usize>)>) {
        self.layers = layers;
    }

    /// Appends an op before the layers.
    pub fn push(&mut self, op: impl Op + 'static) {
        self.program.ops.push(Box::new(op));
    }

    /// Copies the residual stream to a published buffer, such as the tokens' embeddings for [`Lowering::embedding`].
    pub(crate) fn keep_stream(&mut self, name: &'static str, hidden: usize) {
        let view = self.publish(name, hidden);
        let copy = HeadOp::Copy(View::whole(RESIDUAL, hidden));
        self.program.ops.push(Box::new(Prepare {
            groups: vec![HeadGroup::per_channel(view, None, vec![copy])],
            rope: None,
            gates: Vec::new(),
        }));
    }

    /// Allocates a buffer of `width` values per token, which layers read under `name`.
    pub(crate) fn publish(&mut self, name: &str, width: usize) -> View {
        let view = View::whole(self.program.widths.len(), width);
        self.program.widths.push(width);
        self.published.push((name.into(), view));
        view
    }

    /// Ends the life of a published buffer, which layers use for other values from then on.
    pub(crate) fn unpublish(&mut self, name: &str) {
        self.published.retain(|(other, _)| other != name);
    }

    /// Widens the buffer of product inputs to at least `width`.
    pub(crate) fn wide_inputs(&mut self, width: usize) {
        self.program.widths[INPUTS] = self.program.widths[INPUTS].max(width);
    }

    /// Marks the end of a layer after the ops so far.
    pub(crate) fn end_layer(&mut self) {
        self.program.layer_ends.push(self.program.ops.len());
    }

    /// Returns the finished program.
    pub fn finish(mut self) -> Program {
        self.program.logits.norm = self.program.logits.norm.divided(self.stream);
        self.program
    }
}

/// The builder for a layer's ops: provides a mixer or feed-forward network with weights, buffers and state tensors.
pub struct Lowering<'a> {
    file: &'a str,
    tensors: &'a Tensors,
    layer: usize,
    first_tensor: usize,
    /// Number of buffers in use, including the program's; the next layer reuses the layer's buffers.
    buffers: usize,
    published: &'a mut Vec<(String, View)>,
    layers: &'a [(usize, Option<usize>)],
    program: &'a mut Program,
    hidden: usize,
    norm_eps: f32,
    /// Input of this sublayer: the residual stream, unless a mixer sets another one.
    input: View,
    /// Prefix of the names of the tensors.
    scope: String,
    /// Applied to the residual stream before this sublayer.
    pre_norm: Option<Norm>,
    /// Norm of the term that this sublayer, or this part of it, adds to the residual stream.
    post_norm: Option<Norm>,
    /// Factor of that term.
    multiplier: f32,
    stream: &'a mut f32,
    /// Sums into the residual stream; they come last, because all parts read the layer's input.
    sums: Vec<Emit>,
}

impl<'a> Lowering<'a> {
    /// A builder for layer number `layer`, whose state tensors start at index `first_tensor` of the plan.
    pub(crate) fn new(
        source: &WeightSource<'a>,
        layer: usize,
        first_tensor: usize,
        written: &'a mut Written,
    ) -> Self {
        Lowering {
            file: source.file,
            tensors: source.tensors,
            layer,
            first_tensor,
            buffers: FIRST_FREE,
            published: &mut written.published,
            layers: &written.layers,
            program: &mut written.program,
            hidden: source.hidden,
            norm_eps: source.norm_eps,
            input: View::whole(RESIDUAL, source.hidden),
            scope: String::new(),
            pre_norm: None,
            post_norm: None,
            multiplier: 1.0,
            stream: &mut written.stream,
            sums: Vec::new(),
        }
    }

    /// Begins a sublayer; the names of its tensors start with the layer's number and `scope`.
    pub(crate) fn begin(&mut self, scope: &str, kind: NormKind, sublayer: &Sublayer) -> Result<()> {
        self.buffers = FIRST_FREE;
        self.scope = format!("blk.{}.{scope}", self.layer);
        let [pre, post] = Sublayer::norms(scope == "mixer.");
        let named = |is_there: bool, name: &str, eps: Option<f32>| {
            let name = format!("blk.{}.{name}", self.layer);
            let eps = eps.unwrap_or(self.norm_eps);
            let norm = || norm(self.file, self.tensors, &name, kind, eps);
            is_there.then(norm).transpose()
        };
        self.pre_norm = named(sublayer.pre_norm, pre, None)?;
        self.post_norm = named(sublayer.post_norm, post, sublayer.post_norm_eps)?;
        let stream = *self.stream;
        if self.pre_norm.is_none() && stream != 1.0 {
            return Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: "a layer without a norm after a layer with a scaled normed residual".into(),
                expected: "a norm before the layer".into(),
            });
        }
        self.pre_norm = self.pre_norm.take().map(|norm| norm.divided(stream));
        if let Some(residual) = sublayer.normed_residual {
            if let Some(norm) = self.pre_norm.take() {
                let columns = View::whole(RESIDUAL, norm.weight.len());
                self.program.ops.push(Box::new(Normalize { columns, norm }));
            }
            *self.stream = residual;
        }
        self.multiplier = sublayer.multiplier / *self.stream;
        Ok(())
    }

    /// Ends a sublayer by appending its sums into the residual stream.
    pub(crate) fn end(&mut self) -> Result<()> {
        if self.post_norm.is_some() && self.sums.len() > 1 {
            return Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: format!("a norm after {} sums", self.sums.len()),
                expected: "a mixer that adds one product to the residual stream".into(),
            });
        }
        let sums = std::mem::take(&mut self.sums).into_iter();
        self.program
            .ops
            .extend(sums.map(|sum| Box::new(sum) as Box<dyn Op>));
        Ok(())
    }

    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// The epsilon of the model's norms.
    pub fn norm_eps(&self) -> f32 {
        self.norm_eps
    }

    /// Number of the layer.
    pub(crate) fn number(&self) -> usize {
        self.layer
    }

    /// The last layer that reads the keys and values of layer `owner`, if a later one does.
    pub(crate) fn last_reader(&self, owner: usize) -> Option<usize> {
        self.layers.get(owner)?.1
    }

    /// The index in the arena of the first state tensor of layer `owner`.
    pub(crate) fn first_tensor_of(&self, owner: usize) -> Result<usize> {
        let first = self.layers.get(owner).map(|(first, _)| *first);
        first.ok_or_else(|| Error::Config {
            file: self.file.into(),
            key: format!("layers[{}]", self.layer),
            found: format!("keys of layer {owner}"),
            expected: "keys of an earlier layer".into(),
        })
    }

    /// The index in the arena of the mixer's state tensor `index`.
    pub(crate) fn state_tensor(&self, index: usize) -> usize {
        self.first_tensor + index
    }

    /// Returns an f32 tensor of the mixer.
    pub fn vector(&self, name: &str) -> Result<Vector> {
        vector(self.file, self.tensors, &self.full_name(name))
    }

    /// Returns an f32 tensor of the mixer, if the file has one of this name.
    pub(crate) fn optional_vector(&self, name: &str) -> Result<Option<Vector>> {
        if self.tensors.contains_key(&self.full_name(name)) {
            self.vector(name).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns a matrix of the mixer.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        matrix(self.file, self.tensors, &self.full_name(name))
    }

    fn full_name(&self, name: &str) -> String {
        full_name(&self.scope, name)
    }

    /// Lowers one part of a mixer that sums its parts. The names of its tensors start with `prefix`, the indices of its
    /// state tensors start at `tensor` among the mixer's, and `sum` sets how it reads and adds.
    pub fn part(
        &mut self,
        prefix: &str,
        tensor: usize,
        sum: Sum,
        lower: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let scope = format!("{}{prefix}", self.scope);
        let scope = std::mem::replace(&mut self.scope, scope);
        let outer = (
            self.pre_norm.clone(),
            self.post_norm.clone(),
            self.multiplier,
        );
        self.first_tensor += tensor;
        match sum {
            Sum::Normed { share } => {
                let norm = Norm::rms(self.vector("merge_norm.weight")?, self.norm_eps());
                self.post_norm = Some(norm.scaled(share));
            }
            Sum::Multiplied { input, output } => {
                if self.pre_norm.is_none() && input != 1.0 {
                    return Err(Error::Config {
                        file: self.file.into(),
                        key: format!("layers[{}]", self.layer),
                        found: format!("input multiplier {input} of a part without a norm"),
                        expected: "a norm before the parts, or 1".into(),
                    });
                }
                self.pre_norm = self.pre_norm.take().map(|norm| norm.scaled(input));
                self.multiplier *= output;
            }
        }
        lower(self)?;
        self.scope = scope;
        self.first_tensor -= tensor;
        (self.pre_norm, self.post_norm, self.multiplier) = outer;
        Ok(())
    }

    /// Allocates a buffer of `width` values per token, which lives until the end of the layer.
    pub fn buffer(&mut self, width: usize) -> View {
        while (self.published.iter()).any(|(_, view)| view.buffer == self.buffers) {
            self.buffers += 1;
        }
        let buffer = self.buffers;
        self.buffers += 1;
        if buffer == self.program.widths.len() {
            self.program.widths.push(0);
        }
        self.program.widths[buffer] = self.program.widths[buffer].max(width);
        View::whole(buffer, width)
    }

    /// Allocates a buffer of `width` values per token, which later layers read under `name`.
    pub fn publish(&mut self, name: impl Into<String>, width: usize) -> View {
        let name = name.into();
        let view = View::whole(self.program.widths.len(), width);
        self.program.widths.push(width);
        self.published.retain(|(other, _)| *other != name);
        self.published.push((name, view));
        view
    }

    /// Returns the buffer that an earlier layer published under `name`; it must have `width` values per token.
    pub fn published(&self, name: &str, width: usize) -> Result<View> {
        let found = self.published.iter().find(|(other, _)| *other == name);
        match found {
            Some((_, view)) if view.width == width => Ok(*view),
            _ => Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: match found {
                    Some((_, view)) => format!("{} {name} from an earlier layer", view.width),
                    None => format!("no {name} from an earlier layer"),
                },
                expected: format!("{width}"),
            }),
        }
    }

    /// Returns the tokens' embeddings, for a mixer that [reads them](crate::mixers::Mixer::reads_embedding).
    pub fn embedding(&self) -> Result<View> {
        self.published(EMBEDDING, self.hidden)
    }

    /// Lowers ops that read `input`, as wide as the residual stream, in place of the stream, through this sublayer's norm.
    pub fn reading(
        &mut self,
        input: View,
        lower: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let outer = std::mem::replace(&mut self.input, input);
        lower(self)?;
        self.input = outer;
        Ok(())
    }

    /// The norm before this sublayer, if it has one.
    pub(crate) fn input_norm(&self) -> Option<Norm> {
        self.pre_norm.clone()
    }

    /// The ops so far.
    pub(crate) fn ops(&self) -> &[Box<dyn Op>] {
        &self.program.ops
    }

    /// Appends an op.
    pub(crate) fn push(&mut self, op: impl Op + 'static) {
        self.program.ops.push(Box::new(op));
    }

    /// Widens the buffer of product inputs to at least `width`.
    pub(crate) fn wide_inputs(&mut self, width: usize) {
        self.program.widths[INPUTS] = self.program.widths[INPUTS].max(width);
    }
}

fn missing(file: &str, name: &str) -> Error {
    Error::Tensor {
        file: file.into(),
        name: name.into(),
        found: "nothing".into(),
        expected: "a tensor of that name".into(),
    }
}

/// Loads the norm called `name`.
pub(crate) fn norm(
    file: &str,
    tensors: &Tensors,
    name: &str,
    kind: NormKind,
    eps: f32,
) -> Result<Norm> {
    let weight = vector(file, tensors, &format!("{name}.weight"))?;
    Ok(Norm {
        centred: kind != NormKind::Rms,
        bias: match kind {
            NormKind::Layer { bias: true } => Some(vector(file, tensors, &format!("{name}.bias"))?),
            _ => None,
        },
        ..Norm::rms(weight, eps)
    })
}

/// Loads the f32 tensor called `name`.
pub(crate) fn vector(file: &str, tensors: &Tensors, name: &str) -> Result<Vector> {
    let tensor = tensors.get(name).ok_or_else(|| missing(file, name))?;
    Ok(tensor.to_f32().into())
}

/// Loads the matrix called `name`.
pub(crate) fn matrix(file: &str, tensors: &Tensors, name: &str) -> Result<Matrix> {
    let tensor = tensors.get(name).ok_or_else(|| missing(file, name))?;
    let (rows, cols) = match tensor.shape[..] {
        [rows, cols] => (rows, cols),
        _ => {
            return Err(Error::Tensor {
                file: file.into(),
                name: name.into(),
                found: format!("shape {:?}", tensor.shape),
                expected: "a matrix".into(),
            });
        }
    };
    Ok(Matrix::new(tensor.format, rows, cols, tensor.data.clone())?)
}
