//! `--isa`: what loads, from the tables that the decoders read.

use anyhow::Result;
use mok_emu::code::special_registers;
use mok_emu::scalar::notation;
use serde::Serialize;

/// State spaces of variables and addresses.
const SPACES: [(&str, &str); 7] = [
    (".reg", "registers of 1 to 64 bits"),
    (".const", "variables, with initial values"),
    (".global", "variables, with initial values"),
    (".shared{::(cta|cluster)}", "variables, arrays of no size"),
    (".local", "variables of functions"),
    (".param{::(entry|func)}", "of kernels and functions"),
    ("generic", "all but registers"),
];

/// A line of the table.
#[derive(Serialize)]
struct Row {
    group: &'static str,
    name: String,
    types: String,
    /// Operands such as it takes, where a name does not say them.
    #[serde(skip_serializing_if = "Option::is_none")]
    operands: Option<&'static str>,
    /// The lowest `sm_` that has it, where that is later than Hopper.
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u16>,
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for row in mok_emu::scalar::isa() {
        let modifiers: String = row
            .modifiers
            .iter()
            .map(|(names, optional)| notation(names, *optional))
            .collect();
        let types: Vec<String> = row
            .types
            .iter()
            .map(|types| {
                let names: Vec<&str> = types.iter().map(|ty| ty.name()).collect();
                names.join("|")
            })
            .collect();
        rows.push(Row {
            group: "scalar",
            name: format!("{}{modifiers}", row.opcode),
            types: types.join(" . "),
            operands: None,
            from: (row.arch > 90).then_some(row.arch),
        });
    }
    for mut row in mok_emu::code::isa() {
        let is_type = |names: &[&str]| {
            names
                .iter()
                .all(|name| mok_emu::ptx::type_bytes(name).is_some())
        };
        let types = match row.parts.last() {
            Some((names, false)) if is_type(names) => {
                let names = names.join("|");
                row.parts.pop();
                names
            }
            _ => String::new(),
        };
        let parts: String = row
            .parts
            .iter()
            .map(|(names, optional)| notation(names, *optional))
            .collect();
        rows.push(Row {
            group: "machine",
            from: mok_emu::code::later_arch(row.opcode),
            name: format!("{}{parts}", row.opcode),
            types,
            operands: Some(row.operands).filter(|operands| !operands.is_empty()),
        });
    }
    rows.extend(mok_emu::tensor::isa().into_iter().map(|(name, types)| Row {
        group: "tensor",
        from: mok_emu::code::later_arch(&name),
        name,
        types,
        operands: None,
    }));
    rows
}

/// Prints the table, one line an instruction.
pub fn print(json: bool) -> Result<()> {
    let rows = rows();
    if json {
        let object = serde_json::json!({
            "schema": "mok-emu-isa/1",
            "instructions": rows,
            "special_registers": special_registers(),
            "state_spaces": SPACES.map(|(name, _)| name),
        });
        println!("{object}");
        return Ok(());
    }
    println!(
        "Instructions that the emulator executes: .(a|b) one of these, {{.a}} may be left out.\n\
         Behind the name: the types, in its order; operands such as it takes, where $ is a register\n\
         or a vector of them. Cache hints are taken and ignored."
    );
    println!("\nstate spaces");
    for (name, what) in SPACES {
        println!("* {name:58}  {what}");
    }
    println!("\nspecial registers");
    for name in special_registers() {
        println!("* {name}");
    }
    let mut group = "";
    for row in &rows {
        if row.group != group {
            group = row.group;
            println!("\n{group}");
        }
        let from = row
            .from
            .map_or(String::new(), |from| format!("  (sm_{from})"));
        let operands = row.operands.unwrap_or_default();
        let line = format!("  {:58}  {}{from}  {operands}", row.name, row.types);
        println!("{}", line.trim_end());
    }
    Ok(())
}
