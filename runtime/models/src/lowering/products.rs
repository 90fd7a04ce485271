//! Matrix products of a layer: from its input to columns, and back to the residual stream.

use super::Lowering;
use crate::error::{Error, Result};
use crate::functions::{Norm, OutputOp};
use crate::operands::View;
use crate::ops::{Emit, Linear, Project};
use crate::weights::Vector;

impl Lowering<'_> {
    /// Multiplies the normed residual stream by matrices stacked in one buffer, `{name}.weight`, and adds each
    /// `{name}.bias` that exists. Returns the columns of each product.
    pub fn project(&mut self, names: &[&str]) -> Result<Vec<View>> {
        self.project_from(self.input, self.input_norm(), names)
    }

    /// Like [`Lowering::project`], but multiplies each product and its bias by a factor.
    pub(crate) fn project_scaled(&mut self, factors: &[(&str, f32)]) -> Result<Vec<View>> {
        let mut linears = Vec::with_capacity(factors.len());
        let mut width = 0;
        for (name, multiplier) in factors {
            let linear = self.linear(name, *multiplier, width)?;
            width += linear.matrix.rows();
            linears.push(linear);
        }
        Ok(self.project_linears(linears, width))
    }

    /// Like [`Lowering::project_scaled`], but for sections of one matrix, given by their rows and factors.
    pub(crate) fn project_sections(
        &mut self,
        name: &str,
        sections: &[(usize, f32)],
    ) -> Result<Vec<View>> {
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
                matrix: whole.matrix.rows_in(first..column),
            }
        };
        let linears = sections.iter().map(section).collect();
        Ok(self.project_linears(linears, rows))
    }

    /// Multiplies the input of this sublayer by these matrices, whose products are `width` adjacent columns.
    fn project_linears(&mut self, linears: Vec<Linear>, width: usize) -> Vec<View> {
        let input = self.input;
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

    /// Like [`Lowering::project`], but reads any columns, with or without a norm.
    pub(crate) fn project_from(
        &mut self,
        input: View,
        norm: Option<Norm>,
        names: &[&str],
    ) -> Result<Vec<View>> {
        let (project, views) = self.projection(input, norm, names)?;
        self.push(project);
        Ok(views)
    }

    /// Like [`Lowering::project`], but each matrix has `partitions` equal parts, and only the parts chosen by `route`
    /// are multiplied.
    pub(crate) fn project_chosen(
        &mut self,
        names: &[&str],
        partitions: usize,
        route: View,
    ) -> Result<Vec<View>> {
        let input = self.input;
        let (project, views) = self.projection(input, self.input_norm(), names)?;
        let project = project.for_chosen(partitions, route);
        self.push(project);
        Ok(views)
    }

    /// Builds the op that multiplies by these matrices; also returns the columns of each product.
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

    /// Multiplies each view by its own matrix, like [`Lowering::project_from`]; the products are adjacent columns of
    /// one buffer.
    pub(crate) fn project_each(&mut self, pairs: &[(View, &str)]) -> Result<Vec<View>> {
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

    /// Loads the matrix `{name}.weight` and its bias, if any, both times `multiplier`; its product begins at `column`.
    pub fn linear(&self, name: &str, multiplier: f32, column: usize) -> Result<Linear> {
        let bias = self.optional_vector(&format!("{name}.bias"))?;
        Ok(Linear {
            column,
            bias: bias.map(|bias| bias.iter().map(|b| multiplier * b).collect()),
            multiplier,
            matrix: self.matrix(&format!("{name}.weight"))?,
        })
    }

    /// Returns the last matrix of the sublayer, with its product scaled, and the norm after it, for the term added to
    /// the residual stream.
    pub(crate) fn output_linear(
        &mut self,
        name: &str,
        multiplier: f32,
    ) -> Result<(Linear, Option<Norm>)> {
        // A norm cancels any factor of its input except in its epsilon, so the sublayer's multiplier goes after the norm.
        let (before, norm) = match &self.post_norm {
            Some(norm) => (multiplier, Some(norm.scaled(self.multiplier))),
            None => (multiplier * self.multiplier, None),
        };
        let linear = self.linear(name, before, 0)?;
        self.wide_inputs(linear.matrix.cols());
        Ok((linear, norm))
    }

    /// The factor of this sublayer's output; fails if a norm follows.
    pub(crate) fn plain_multiplier(&self) -> Result<f32> {
        match self.post_norm {
            None => Ok(self.multiplier),
            Some(_) => Err(Error::Config {
                file: self.file.into(),
                key: format!("layers[{}]", self.layer),
                found: "a norm after a mixture of experts or a gated channel mix".into(),
                expected: "none".into(),
            }),
        }
    }

    /// Ends the sublayer: `finish` normalises and gates its output, and the matrix `name` maps it back to the residual
    /// stream.
    pub fn emit(&mut self, input: View, finish: Vec<OutputOp>, name: &str) -> Result<()> {
        self.emit_scaled(input, finish, name, 1.0)
    }

    /// Like [`Lowering::emit`], but multiplies the product.
    pub(crate) fn emit_scaled(
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
}
