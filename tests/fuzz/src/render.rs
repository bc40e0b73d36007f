//! Programs as PTX.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::program::{Body, Item, NUMBERS, POOL, Program};

/// What a module of programs starts with.
const HEADER: &str = ".version 8.4\n.target sm_90a\n.address_size 64\n";

/// Parameters of functions (`a0` and so on), with the registers that they arrive in.
pub(crate) const PASSED: [(&str, &str); 7] = [
    ("b64", "%in"),
    ("b64", "%out"),
    ("b64", "%near"),
    ("b32", "%zero"),
    ("b32", "%salt"),
    ("b32", "%r0"),
    ("b64", "%d0"),
];

/// A module with these programs as entries.
pub fn module(programs: &[&Program]) -> String {
    let mut text = HEADER.to_owned();
    for program in programs {
        for (index, body) in program.functions.iter().enumerate() {
            if calls(&program.main.items, index) {
                text.push_str(&function(program, index, body));
            }
        }
        text.push_str(&kernel(program));
    }
    text
}

/// Whether a function is called.
fn calls(items: &[Item], index: usize) -> bool {
    items.iter().any(|item| match item {
        Item::Call { function, .. } => *function == index,
        item => item.parts().into_iter().any(|part| calls(part, index)),
    })
}

/// The text of one body.
struct Writer<'a> {
    program: &'a Program,
    /// Which function, or the kernel.
    function: Option<usize>,
    lines: Vec<String>,
    labels: usize,
}

impl Writer<'_> {
    fn line(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    fn label(&mut self) -> String {
        self.labels += 1;
        format!("L{}", self.labels)
    }

    fn items(&mut self, items: &[Item]) {
        for item in items {
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Step(step) => {
                let guard = step
                    .guard
                    .as_ref()
                    .map_or(String::new(), |guard| format!("@{guard} "));
                self.lines.extend(step.before.iter().cloned());
                for instruction in &step.code {
                    self.line(format!("{guard}{};", instruction.text));
                }
                for (guarded, line) in &step.after {
                    self.line(if *guarded {
                        format!("{guard}{line}")
                    } else {
                        line.clone()
                    });
                }
            }
            Item::If {
                before,
                condition,
                uniform,
                then,
                other,
            } => {
                self.lines.extend(before.iter().cloned());
                let [otherwise, end] = [self.label(), self.label()];
                let uni = if *uniform { ".uni" } else { "" };
                self.line(format!("@{} bra{uni} {otherwise};", negated(condition)));
                self.items(then);
                if !other.is_empty() {
                    self.line(format!("bra{uni} {end};"));
                }
                self.line(format!("{otherwise}:"));
                self.items(other);
                if !other.is_empty() {
                    self.line(format!("{end}:"));
                }
            }
            Item::Loop {
                before,
                depth,
                body,
            } => {
                self.lines.extend(before.iter().cloned());
                let again = self.label();
                self.line(format!("{again}:"));
                self.items(body);
                self.line(format!("setp.ne.u32 %l{depth}, %c{depth}, 0;"));
                self.line(format!("sub.u32 %c{depth}, %c{depth}, 1;"));
                self.line(format!("@%l{depth} bra {again};"));
            }
            Item::Leave {
                before,
                condition,
                exit,
            } => {
                self.lines.extend(before.iter().cloned());
                self.line(match (exit, self.function) {
                    (true, _) => format!("@{condition} exit;"),
                    (false, None) => format!("@{condition} ret;"),
                    (false, Some(_)) => format!("@{condition} bra RETURN;"),
                });
            }
            Item::Call {
                function,
                arguments,
                result,
            } => {
                let name = function_name(self.program, *function);
                let [a, b] = arguments;
                self.line("{");
                let given = [
                    "%in",
                    "%out",
                    "%near",
                    "%zero",
                    "%salt",
                    a.as_str(),
                    b.as_str(),
                ];
                for (at, ((ty, _), value)) in PASSED.iter().zip(given).enumerate() {
                    self.line(format!(".param .{ty} a{at};"));
                    self.line(format!("st.param.{ty} [a{at}], {value};"));
                }
                self.line(".param .b32 back;");
                self.line(format!(
                    "call (back), {name}, (a0, a1, a2, a3, a4, a5, a6);"
                ));
                self.line(format!("ld.param.b32 {result}, [back];"));
                self.line("}");
            }
        }
    }
}

/// The opposite of `%p1` or `!%p1`.
fn negated(condition: &str) -> String {
    match condition.strip_prefix('!') {
        Some(plain) => plain.to_owned(),
        None => format!("!{condition}"),
    }
}

fn function_name(program: &Program, index: usize) -> String {
    format!("{}_function{index}", program.entry())
}

/// Registers that a line names.
fn registers(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices('%').map(|(at, _)| {
        let rest = &line[at..];
        let end = rest[1..]
            .find(|c: char| !c.is_ascii_alphanumeric())
            .map_or(rest.len(), |end| end + 1);
        &rest[..end]
    })
}

/// Declarations of all registers.
fn declarations(program: &Program, text: &mut String) {
    for ((name, bits, count), temporaries) in POOL.iter().zip(program.temporaries) {
        let ty = if *bits == 1 {
            "pred".to_owned()
        } else {
            format!("b{bits}")
        };
        let _ = writeln!(
            text,
            ".reg .{ty} %{name}<{count}>, %t{name}<{temporaries}>;"
        );
    }
    let _ = writeln!(
        text,
        ".reg .b64 %in, %out, %near, %zerod, %n<{NUMBERS}>;\n.reg .b32 %zero, %salt, %x<3>, %c<4>;\n\
         .reg .b16 %zeroh;\n.reg .b8 %tb<2>;\n.reg .pred %l<4>;"
    );
}

/// The body's lines behind those of its setup that it needs.
fn body(program: &Program, function: Option<usize>, body: &Body, text: &mut String) {
    let mut writer = Writer {
        program,
        function,
        lines: Vec::new(),
        labels: 0,
    };
    writer.items(&body.items);
    let mut used: HashSet<String> = HashSet::new();
    let lines = writer.lines;
    let mut note = |line: &str| used.extend(registers(line).map(str::to_owned));
    lines.iter().for_each(|line| note(line));
    // A function hands %r0 back, a kernel's setup may need what a later line defines: last first.
    if function.is_some() {
        note("%r0");
    }
    let mut setup = Vec::new();
    for (defines, line) in body.setup.0.iter().rev() {
        if defines.iter().any(|register| used.contains(register)) {
            used.extend(registers(line).map(str::to_owned));
            setup.push(line);
        }
    }
    for line in setup.into_iter().rev().chain(&lines) {
        text.push_str(line);
        text.push('\n');
    }
}

fn kernel(program: &Program) -> String {
    let mut text = format!(
        ".visible .entry {}(.param .u64 in, .param .u64 out, .param .u64 near, .param .u32 zero, .param .u32 salt)\n{{\n",
        program.entry()
    );
    declarations(program, &mut text);
    let _ = write!(
        text,
        "mov.u32 %x0, %tid.x;\nmov.u32 %x1, %ctaid.x;\nmov.u32 %x2, %ntid.x;\n\
         mad.lo.u32 %x0, %x1, %x2, %x0;\n"
    );
    let strides = [
        ("in", 16),
        ("out", 8 * program.words),
        ("near", 24 * program.sites),
    ];
    for (name, stride) in strides {
        let _ = write!(
            text,
            "ld.param.u64 %{name}, [{name}];\ncvta.to.global.u64 %{name}, %{name};\n\
             mad.wide.u32 %{name}, %x0, {stride}, %{name};\n"
        );
    }
    text.push_str("ld.param.u32 %zero, [zero];\nld.param.u32 %salt, [salt];\n");
    text.push_str("cvt.u16.u32 %zeroh, %zero;\ncvt.u64.u32 %zerod, %zero;\n");
    body(program, None, &program.main, &mut text);
    text.push_str("ret;\n}\n");
    text
}

fn function(program: &Program, index: usize, function: &Body) -> String {
    let params: Vec<String> = PASSED
        .iter()
        .enumerate()
        .map(|(at, (ty, _))| format!(".param .{ty} a{at}"))
        .collect();
    let name = function_name(program, index);
    let mut text = format!(
        ".func (.param .b32 back) {name}({})\n{{\n",
        params.join(", ")
    );
    declarations(program, &mut text);
    let mut inner = String::new();
    body(program, Some(index), function, &mut inner);
    // The two arguments proper are part of the setup.
    for (at, (ty, register)) in PASSED.iter().enumerate().take(5) {
        let _ = writeln!(text, "ld.param.{ty} {register}, [a{at}];");
    }
    text.push_str("cvt.u16.u32 %zeroh, %zero;\ncvt.u64.u32 %zerod, %zero;\n");
    text.push_str(&inner);
    text.push_str("RETURN:\nst.param.b32 [back], %r0;\nret;\n}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_a_line() {
        let of = |line: &'static str| registers(line).collect::<Vec<_>>();
        assert_eq!(
            of("@!%p1 setp.lt.f32 %p2|%tp0, %r11, 0f00000000;"),
            ["%p1", "%p2", "%tp0", "%r11"]
        );
        assert_eq!(of("st.global.b32 [%out+8], %r1"), ["%out", "%r1"]);
        assert_eq!(negated("%p1"), "!%p1");
        assert_eq!(negated("!%p1"), "%p1");
    }
}
