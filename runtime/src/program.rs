//! A model as a list of ops over buffers: what both backends run, and how mixers write it.

use std::collections::HashMap;
use std::sync::Arc;

use waterline_quant::{Matrix, Tensor};

use crate::error::{Error, Result};
use crate::ops::{Embed, Emit, Linear, Logits, Norm, Op, OutputOp, Project, Renew};
use crate::spec::{NormKind, Sublayer};
use crate::state::{StatePlan, Touched};

/// A small f32 tensor that never is quantized: a norm, bias, gate, convolution or router.
pub type Vector = Arc<[f32]>;

/// Columns of a buffer: `width` values of each token from column `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The buffer.
    pub buffer: usize,
    /// First column.
    pub start: usize,
    /// Number of columns.
    pub width: usize,
    /// Values from one token to the next.
    pub stride: usize,
}

impl View {
    /// All columns of a buffer that holds `[tokens, width]`.
    pub fn whole(buffer: usize, width: usize) -> Self {
        View {
            buffer,
            start: 0,
            width,
            stride: width,
        }
    }

    /// Whether some value of some token belongs to both. Rows of other lengths meet somewhere.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let meet = self.start < other.start + other.width && other.start < self.start + self.width;
        self.buffer == other.buffer && (meet || self.stride != other.stride)
    }

    /// Whether all of the other's columns are among these.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        let end = |view: &Self| view.start + view.width;
        let rows = (self.buffer, self.stride) == (other.buffer, other.stride);
        rows && self.start <= other.start && end(other) <= end(self)
    }

    /// The first `width` columns, and the others.
    pub fn split(self, width: usize) -> (Self, Self) {
        let first = View { width, ..self };
        let rest = View {
            start: self.start + width,
            width: self.width - width,
            ..self
        };
        (first, rest)
    }
}

/// The residual stream is buffer 0.
pub const RESIDUAL: usize = 0;
/// A device gathers inputs of matrix products in buffer 1. It is as wide as the widest of them.
pub const INPUTS: usize = 1;
/// Products that are summed into the residual stream pass through buffer 2.
pub const PRODUCT: usize = 2;
/// A block's own buffers come after these.
const FIRST: usize = 3;

/// A bound model: ops in order, and the buffers between them.
pub struct Program {
    /// Widest use of each buffer: it has room for `[tokens, width]`.
    pub widths: Vec<usize>,
    /// The ops that read tokens into the state.
    pub(crate) ops: Vec<Box<dyn Op>>,
    /// How many ops come before each layer's end.
    pub(crate) layer_ends: Vec<usize>,
    /// What turns the residual stream into logits, for the tokens where they are wanted.
    pub logits: Logits,
}

impl Program {
    /// Bytes of weights that reading one token touches: every matrix once, and one row of the embedding.
    pub fn weight_bytes(&self) -> usize {
        self.ops.iter().map(|op| op.weight_bytes()).sum::<usize>()
            + self.logits.matrix.bytes().len()
    }

    /// The layer of an op; none for the embedding.
    pub(crate) fn layer_of(&self, op: usize) -> Option<usize> {
        (op > 0).then(|| self.layer_ends.partition_point(|&end| end <= op))
    }

    /// What reading the token at `position` touches of the layers' state tensors.
    pub fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let ops = self.ops.iter();
        ops.flat_map(|op| op.touched(plan, position)).collect()
    }
}

/// Tensors by their full names.
pub type Tensors = HashMap<String, Tensor>;

/// How a part of a mixer that sums several reads the layer's input, and what becomes of its product.
#[derive(Debug, Clone, Copy)]
pub enum Sum {
    /// The product passes the norm `merge_norm.weight` of the part, times this share.
    Normed {
        /// Multiplies the normed product.
        share: f32,
    },
    /// Both are multiplied.
    Multiplied {
        /// Multiplies the layer's normed input.
        input: f32,
        /// Multiplies the product.
        output: f32,
    },
}

/// Where a mixer or a feed-forward network writes its ops: gives it its weights, buffers and slots.
pub struct Lowering<'a> {
    file: &'a str,
    tensors: &'a Tensors,
    layer: usize,
    first_tensor: usize,
    /// Buffers of this layer in use; they are given to the next layer again.
    buffers: usize,
    /// Buffers that live on after their layer, by name.
    published: &'a mut Vec<(&'static str, View)>,
    program: &'a mut Program,
    hidden: usize,
    norm_eps: f32,
    /// What the names of the tensors begin with.
    scope: String,
    /// Applied to the residual stream in front of this sublayer.
    pre_norm: Option<Norm>,
    /// Applied to what this sublayer, or this part of it, adds to the residual stream.
    post_norm: Option<Norm>,
    /// Multiplies what it adds.
    multiplier: f32,
    /// The residual stream is so many times what its buffer holds: norms see this in their epsilon alone.
    stream: &'a mut f32,
    /// Sums into the residual stream, which come last: all parts read the layer's input.
    sums: Vec<Emit>,
}

impl<'a> Lowering<'a> {
    /// Lowers a whole model: embedding, every layer, logits.
    pub(crate) fn model(
        file: &str,
        spec: &crate::ModelSpec,
        tensors: &Tensors,
        first_tensor: usize,
    ) -> Result<Program> {
        let embedding = matrix(file, tensors, "token_embd.weight")?;
        let output = if spec.tied {
            embedding.clone()
        } else {
            matrix(file, tensors, "output.weight")?
        };
        let named = |name: &str| norm(file, tensors, name, spec.norm, spec.norm_eps);
        let embed = Embed {
            matrix: embedding,
            multiplier: spec.embedding_multiplier,
            norm: match spec.embedding_norm {
                true => Some(named("token_embd_norm")?),
                false => None,
            },
        };
        let mut program = Program {
            widths: vec![spec.hidden; FIRST],
            ops: vec![Box::new(embed)],
            layer_ends: Vec::new(),
            logits: Logits {
                // The output matrix, which may be quantized, stays as it is.
                norm: named("output_norm")?.scaled(spec.logits_multiplier),
                matrix: output,
                softcap: spec.logit_softcap,
            },
        };
        let mut first_tensor = first_tensor;
        let mut published = Vec::new();
        let mut stream = 1.0;
        for (layer, layer_spec) in spec.layers.iter().enumerate() {
            let mut lowering = Lowering {
                file,
                tensors,
                layer,
                first_tensor,
                buffers: FIRST,
                published: &mut published,
                program: &mut program,
                hidden: spec.hidden,
                norm_eps: spec.norm_eps,
                scope: String::new(),
                pre_norm: None,
                post_norm: None,
                multiplier: 1.0,
                stream: &mut stream,
                sums: Vec::new(),
            };
            if let Some(mixer) = &layer_spec.mixer {
                lowering.begin("mixer.", spec.norm, &layer_spec.mixer_sublayer)?;
                mixer.lower(&mut lowering)?;
                lowering.end()?;
            }
            if let Some(ffn) = &layer_spec.ffn {
                lowering.begin("", spec.norm, &layer_spec.ffn_sublayer)?;
                ffn.lower(&mut lowering)?;
                lowering.end()?;
            }
            first_tensor += layer_spec.state().len();
            program.layer_ends.push(program.ops.len());
        }
        program.logits.norm = program.logits.norm.of_divided(stream);
        Ok(program)
    }

    /// Begins a sublayer, whose tensors' names begin with `scope` behind the layer's number.
    fn begin(&mut self, scope: &str, kind: NormKind, sublayer: &Sublayer) -> Result<()> {
        self.buffers = FIRST;
        self.scope = format!("blk.{}.{scope}", self.layer);
        let [pre, post] = Sublayer::norms(scope == "mixer.");
        let named = |is_there: bool, name: &str| {
            let name = format!("blk.{}.{name}", self.layer);
            let norm = || norm(self.file, self.tensors, &name, kind, self.norm_eps);
            is_there.then(norm).transpose()
        };
        self.pre_norm = named(sublayer.pre_norm, pre)?;
        self.post_norm = named(sublayer.post_norm, post)?;
        let stream = *self.stream;
        if self.pre_norm.is_none() && stream != 1.0 {
            return Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: "no norm in front, behind a layer with a multiplied normed residual".into(),
                expected: "a norm in front".into(),
            });
        }
        self.pre_norm = self.pre_norm.take().map(|norm| norm.of_divided(stream));
        if let Some(residual) = sublayer.normed_residual {
            self.program.ops.extend(
                self.pre_norm
                    .take()
                    .map(|norm| Box::new(Renew { norm }) as Box<dyn Op>),
            );
            *self.stream = residual;
        }
        self.multiplier = sublayer.multiplier / *self.stream;
        Ok(())
    }

    /// Ends a sublayer with its sums into the residual stream.
    fn end(&mut self) -> Result<()> {
        if self.post_norm.is_some() && self.sums.len() > 1 {
            return Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: format!("a norm behind {} sums", self.sums.len()),
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

    /// The arena's number of the mixer's slot `index`.
    pub fn state_tensor(&self, index: usize) -> usize {
        self.first_tensor + index
    }

    /// A f32 tensor of the mixer.
    pub fn vector(&self, name: &str) -> Result<Vector> {
        vector(self.file, self.tensors, &self.full_name(name))
    }

    /// A f32 tensor of the mixer, if its table has one of that name.
    pub fn optional_vector(&self, name: &str) -> Result<Option<Vector>> {
        match self.tensors.contains_key(&self.full_name(name)) {
            true => self.vector(name).map(Some),
            false => Ok(None),
        }
    }

    /// A matrix of the mixer.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        matrix(self.file, self.tensors, &self.full_name(name))
    }

    fn full_name(&self, name: &str) -> String {
        format!("{}{name}", self.scope)
    }

    /// Writes one part of a mixer that sums several: the names of its tensors begin with `prefix`, its state tensors are
    /// counted from the mixer's number `slot` on, and it reads and adds as `sum` says.
    pub fn part(
        &mut self,
        prefix: &str,
        slot: usize,
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
        self.first_tensor += slot;
        match sum {
            Sum::Normed { share } => {
                let norm = Norm::rms(self.vector("merge_norm.weight")?, self.norm_eps);
                self.post_norm = Some(norm.scaled(share));
            }
            Sum::Multiplied { input, output } => {
                if self.pre_norm.is_none() && input != 1.0 {
                    return Err(Error::Config {
                        file: self.file.into(),
                        key: format!("layers[{}]", self.layer),
                        found: format!("input multiplier {input} of a part without a norm"),
                        expected: "a norm in front of the parts, or 1".into(),
                    });
                }
                self.pre_norm = self.pre_norm.take().map(|norm| norm.scaled(input));
                self.multiplier *= output;
            }
        }
        lower(self)?;
        self.scope = scope;
        self.first_tensor -= slot;
        (self.pre_norm, self.post_norm, self.multiplier) = outer;
        Ok(())
    }

    /// A buffer of `width` values a token, which lives until the end of the block.
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

    /// A buffer of `width` values a token that later blocks read under `name`.
    pub fn publish(&mut self, name: &'static str, width: usize) -> View {
        let view = View::whole(self.program.widths.len(), width);
        self.program.widths.push(width);
        self.published.retain(|(other, _)| *other != name);
        self.published.push((name, view));
        view
    }

    /// The buffer that an earlier block has published under `name`, which must be of `width` values a token.
    pub fn published(&self, name: &str, width: usize) -> Result<View> {
        let found = self.published.iter().find(|(other, _)| *other == name);
        match found {
            Some((_, view)) if view.width == width => Ok(*view),
            _ => Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: match found {
                    Some((_, view)) => format!("{} {name} from an earlier block", view.width),
                    None => format!("no {name} from an earlier block"),
                },
                expected: format!("{width}"),
            }),
        }
    }

    /// The norm in front of this sublayer, if it has one.
    pub fn input_norm(&self) -> Option<Norm> {
        self.pre_norm.clone()
    }

    /// Appends an op.
    pub(crate) fn push(&mut self, op: impl Op + 'static) {
        self.program.ops.push(Box::new(op));
    }

    /// Multiplies the normed residual stream with matrices stacked in one buffer, `{name}.weight` and, where it
    /// exists, `{name}.bias`; returns each one's columns.
    pub fn project(&mut self, names: &[&str]) -> Result<Vec<View>> {
        let input = View::whole(RESIDUAL, self.hidden);
        self.project_from(input, self.input_norm(), names)
    }

    /// As [`Lowering::project`], each matrix' product and bias multiplied by a number.
    pub fn project_scaled(&mut self, factors: &[(&str, f32)]) -> Result<Vec<View>> {
        let mut linears = Vec::with_capacity(factors.len());
        let mut width = 0;
        for (name, multiplier) in factors {
            let linear = self.linear(name, *multiplier, width)?;
            width += linear.matrix.rows();
            linears.push(linear);
        }
        Ok(self.project_linears(linears, width))
    }

    /// As [`Lowering::project_scaled`], of parts of one matrix: so many rows each, and what multiplies them.
    pub fn project_sections(&mut self, name: &str, sections: &[(usize, f32)]) -> Result<Vec<View>> {
        let whole = self.linear(name, 1.0, 0)?;
        let rows = sections.iter().map(|(rows, _)| rows).sum::<usize>();
        if whole.matrix.rows() != rows {
            return Err(Error::Tensor {
                file: self.file.into(),
                name: self.full_name(&format!("{name}.weight")),
                found: format!("{} rows", whole.matrix.rows()),
                expected: format!("{rows}"),
            });
        }
        let mut column = 0;
        let section = |&(rows, multiplier): &(usize, f32)| {
            let first = column;
            column += rows;
            let part = |bias: &Vector| bias[first..column].iter().map(|b| multiplier * b).collect();
            Linear {
                column: first,
                bias: whole.bias.as_ref().map(part),
                multiplier,
                matrix: whole.matrix.of_rows(first..column),
            }
        };
        let linears = sections.iter().map(section).collect();
        Ok(self.project_linears(linears, rows))
    }

    /// Multiplies the input of this sublayer with these matrices, whose products are `width` columns side by side.
    fn project_linears(&mut self, linears: Vec<Linear>, width: usize) -> Vec<View> {
        let input = View::whole(RESIDUAL, self.hidden);
        self.wide_inputs(input.width);
        let output = self.buffer(width);
        let view = |linear: &Linear| View {
            start: linear.column,
            width: linear.matrix.rows(),
            ..output
        };
        let views = linears.iter().map(view).collect();
        self.push(Project::new(input, self.input_norm(), linears, output));
        views
    }

    /// As [`Lowering::project`], from any columns and with or without a norm.
    pub fn project_from(
        &mut self,
        input: View,
        norm: Option<Norm>,
        names: &[&str],
    ) -> Result<Vec<View>> {
        let (project, views) = self.projection(input, norm, names)?;
        self.push(project);
        Ok(views)
    }

    /// As [`Lowering::project`], with matrices of as many equal parts as there are `partitions`, of which only those are
    /// multiplied that `route` has chosen.
    pub fn project_chosen(
        &mut self,
        names: &[&str],
        partitions: usize,
        route: View,
    ) -> Result<Vec<View>> {
        let input = View::whole(RESIDUAL, self.hidden);
        let (project, views) = self.projection(input, self.input_norm(), names)?;
        let project = project.of_chosen(partitions, route);
        self.push(project);
        Ok(views)
    }

    /// The op that multiplies with these matrices, and each one's columns.
    fn projection(
        &mut self,
        input: View,
        norm: Option<Norm>,
        names: &[&str],
    ) -> Result<(Project, Vec<View>)> {
        self.wide_inputs(input.width);
        let mut linears = Vec::with_capacity(names.len());
        let mut width = 0;
        for name in names {
            let linear = self.linear(name, 1.0, width)?;
            width += linear.matrix.rows();
            linears.push(linear);
        }
        let output = self.buffer(width);
        let view = |linear: &Linear| View {
            start: linear.column,
            width: linear.matrix.rows(),
            ..output
        };
        let views = linears.iter().map(view).collect();
        Ok((Project::new(input, norm, linears, output), views))
    }

    /// Multiplies several columns with a matrix each, as [`Lowering::project_from`]; the results stand side by side in
    /// one buffer.
    pub fn project_each(&mut self, pairs: &[(View, &str)]) -> Result<Vec<View>> {
        let mut projects = Vec::new();
        let mut width = 0;
        for (input, name) in pairs {
            self.wide_inputs(input.width);
            let linear = self.linear(name, 1.0, width)?;
            width += linear.matrix.rows();
            projects.push((*input, linear));
        }
        let output = self.buffer(width);
        let mut views = Vec::new();
        for (input, linear) in projects {
            views.push(View {
                start: linear.column,
                width: linear.matrix.rows(),
                ..output
            });
            let project = Project::new(input, None, vec![linear], output);
            self.push(project);
        }
        Ok(views)
    }

    /// The matrix `{name}.weight` with its bias, if there is one, both multiplied; its product begins at `column`.
    pub fn linear(&self, name: &str, multiplier: f32, column: usize) -> Result<Linear> {
        let bias = self.optional_vector(&format!("{name}.bias"))?;
        Ok(Linear {
            column,
            bias: bias.map(|bias| bias.iter().map(|b| multiplier * b).collect()),
            multiplier,
            matrix: self.matrix(&format!("{name}.weight"))?,
        })
    }

    /// The matrix that ends the sublayer, its product multiplied, and the norm behind it: what is to be added to the
    /// residual stream.
    pub fn output_linear(&mut self, name: &str, multiplier: f32) -> Result<(Linear, Option<Norm>)> {
        // A norm does not see what multiplies its input, but for its epsilon.
        let (before, norm) = match &self.post_norm {
            Some(norm) => (multiplier, Some(norm.scaled(self.multiplier))),
            None => (multiplier * self.multiplier, None),
        };
        let linear = self.linear(name, before, 0)?;
        self.wide_inputs(linear.matrix.cols());
        Ok((linear, norm))
    }

    /// What multiplies this sublayer's output, which no norm may follow.
    pub(crate) fn plain_multiplier(&self) -> Result<f32> {
        match self.post_norm {
            None => Ok(self.multiplier),
            Some(_) => Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: "a norm behind a mixture of experts".into(),
                expected: "none".into(),
            }),
        }
    }

    /// Ends the sublayer: `finish` normalises and gates its output, the matrix `name` takes it back to the residual
    /// stream.
    pub fn emit(&mut self, input: View, finish: Vec<OutputOp>, name: &str) -> Result<()> {
        self.emit_scaled(input, finish, name, 1.0)
    }

    /// As [`Lowering::emit`], the product multiplied.
    pub fn emit_scaled(
        &mut self,
        input: View,
        finish: Vec<OutputOp>,
        name: &str,
        multiplier: f32,
    ) -> Result<()> {
        let (linear, norm) = self.output_linear(name, multiplier)?;
        self.sums.push(Emit {
            input,
            finish,
            linear,
            norm,
        });
        Ok(())
    }

    /// Makes room for inputs of products of this width.
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

fn norm(file: &str, tensors: &Tensors, name: &str, kind: NormKind, eps: f32) -> Result<Norm> {
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

fn vector(file: &str, tensors: &Tensors, name: &str) -> Result<Vector> {
    let tensor = tensors.get(name).ok_or_else(|| missing(file, name))?;
    Ok(tensor.to_f32().into())
}

fn matrix(file: &str, tensors: &Tensors, name: &str) -> Result<Matrix> {
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
