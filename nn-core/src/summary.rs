use std::fmt;

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use nn_kernels::Device;

use crate::describe::{Describe, Row};
use crate::layer::{Declared, Layer, Module};
use crate::signature::Signature;
use crate::table::{Parameter, parameters};
use crate::tree::Role;

/// A model as a table: what `summary()` prints.
#[derive(Clone, Debug)]
pub struct Summary {
    model: String,
    input: String,
    output: String,
    /// A row a leaf layer.
    pub rows: Vec<Row>,
    /// Parameters, without padding.
    pub params: usize,
    /// How many of them are frozen.
    pub frozen: usize,
    /// Bytes of the parameters and the state, padding and what is [kept twice](crate::Memory::MIXED) included.
    pub bytes: usize,
    /// Whether there are weights in fewer bits than elements have.
    packed: bool,
    /// Multiply-adds of one sample's forward pass.
    pub macs: usize,
    capacity: usize,
    element: usize,
    workspace: usize,
}

impl Summary {
    pub(crate) fn of<M: Declared + Module<D, M::In>, D: Device>(capacity: usize, workspace: usize) -> Self {
        let table = parameters(M::TREE, None);
        let kept = size_of::<D::Wide>() + if D::MIXED { size_of::<D::Elem>() } else { 0 };
        Self {
            model: M::LABEL.as_str().to_owned(),
            input: <M::In as Signature>::SIG.to_string(),
            output: <M::Out as Signature>::SIG.to_string(),
            rows: Describe::of::<M, D, M::In>().rows,
            params: crate::describe::count(M::TREE),
            frozen: table.iter().filter(|p| p.in_state && p.role != Role::State).map(Parameter::len).sum(),
            bytes: (M::TREE.params() + M::TREE.state()).saturating_mul(kept),
            packed: table.iter().any(|p| p.packing().is_some()),
            macs: <M as Layer<M::In>>::MACS,
            capacity,
            element: size_of::<D::Elem>(),
            workspace,
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─')));
        table.set_header([
            "field",
            "layer",
            "output",
            "parameters",
            "multiply-adds",
            "saved",
            "scratch",
            "route",
        ]);
        for row in &self.rows {
            let bytes = |size: crate::Size| quantity(size.at(self.capacity, self.element), "B");
            let some = |n: usize| if n == 0 { String::new() } else { grouped(n) };
            table.add_row([
                // What is in no field is the model's own, as an addition in its `forward`.
                if row.path.is_empty() { self.model.clone() } else { row.path.clone() },
                row.layer.clone(),
                row.out.to_string(),
                some(row.params),
                some(row.macs),
                if row.saved == crate::Size::ZERO { String::new() } else { bytes(row.saved) },
                if row.scratch == crate::Size::ZERO { String::new() } else { bytes(row.scratch) },
                row.route.to_owned(),
            ]);
        }
        for column in 3..7 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(
            f,
            "{}: {} → {}, {} parameters{}{}, {} multiply-adds a sample",
            self.model,
            self.input,
            self.output,
            grouped(self.params),
            if self.frozen > 0 {
                format!(", {} of them frozen", grouped(self.frozen))
            } else {
                String::new()
            },
            if self.packed { format!(", {}", quantity(self.bytes, "B")) } else { String::new() },
            grouped(self.macs)
        )?;
        writeln!(f, "{}", table.trim_fmt())?;
        write!(f, "workspace for {} samples: {}", self.capacity, quantity(self.workspace, "B"))
    }
}

/// 1,234,567.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// Three digits and a unit: 1.21 MiB.
fn quantity(n: usize, unit: &str) -> String {
    let mut value = n as f64;
    for prefix in ["", "Ki", "Mi", "Gi"] {
        if value < 1024.0 || prefix == "Gi" {
            let digits = if prefix.is_empty() || value >= 100.0 {
                0
            } else if value >= 10.0 {
                1
            } else {
                2
            };
            return format!("{value:.digits$} {prefix}{unit}");
        }
        value /= 1024.0;
    }
    unreachable!("the last prefix takes every value")
}

#[cfg(test)]
mod tests {
    use super::{grouped, quantity};

    #[test]
    fn numbers_are_readable() {
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(grouped(12), "12");
        assert_eq!(quantity(1_266_679, "B"), "1.21 MiB");
        assert_eq!(quantity(640, "B"), "640 B");
    }
}
