use super::*;

/// A form's data, with sizes that are multiples of nothing, and NaN wherever no result may look.
struct Case {
    form: Form,
    groups: Groups,
    outer: usize,
    n: usize,
    a: Vec<bf16>,
    b: Vec<bf16>,
}

const PAD: usize = 3;

impl Case {
    fn new(form: Form, sizes: &[u32], outer: usize, n: usize, seed: u64) -> Case {
        let groups = Groups::new(sizes).unwrap();
        let capacity = groups.capacity() as usize;
        let mut a = fill::normal::<bf16>(seed, capacity * (outer + PAD), 1.0);
        let b_rows = if form == Form::Wgrad {
            capacity
        } else {
            groups.len() * outer.max(n)
        };
        let mut b = fill::normal::<bf16>(seed + 1, b_rows * (outer.max(n) + PAD), 1.0);
        for row in (0..capacity).filter(|&row| groups.group_of(row).is_none()) {
            a[row * (outer + PAD)..][..outer].fill(bf16::NAN);
            if form == Form::Wgrad {
                b[row * (outer.max(n) + PAD)..][..n].fill(bf16::NAN);
            }
        }
        Case {
            form,
            groups,
            outer,
            n,
            a,
            b,
        }
    }

    fn b_strides(&self) -> (usize, usize) {
        let row = self.outer.max(self.n) + PAD;
        (row, self.outer.max(self.n) * row)
    }

    fn problem(&self) -> Problem<'_> {
        let (row, group) = self.b_strides();
        let a = Operand::new(&self.a).with_row_stride(self.outer + PAD);
        let b = Operand::new(&self.b).with_row_stride(row);
        let (groups, outer, n) = (&self.groups, self.outer, self.n);
        match self.form {
            Form::Forward => Problem::forward(groups, n, outer, a, b.with_group_stride(group)),
            Form::Dgrad => Problem::dgrad(groups, n, outer, a, b.with_group_stride(group)),
            Form::Wgrad => Problem::wgrad(groups, outer, n, a, b),
        }
        .unwrap()
    }

    /// The definition, one element at a time.
    fn naive(&self, row: usize, col: usize) -> f64 {
        let a = |row: usize, col: usize| self.a[row * (self.outer + PAD) + col].to_f64();
        let (b_row, b_group) = self.b_strides();
        let b = |at: usize| self.b[at].to_f64();
        let group = |row: usize| self.groups.group_of(row).unwrap();
        match self.form {
            Form::Forward => (0..self.outer)
                .map(|k| a(row, k) * b(group(row) * b_group + col * b_row + k))
                .sum(),
            Form::Dgrad => (0..self.outer)
                .map(|k| a(row, k) * b(group(row) * b_group + k * b_row + col))
                .sum(),
            Form::Wgrad => (self.groups.rows_of(row / self.outer))
                .map(|r| a(r, row % self.outer) * b(r * b_row + col))
                .sum(),
        }
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let shapes: [(&[u32], usize, usize); 5] = [
        (&[5, 0, 131, 1], 37, 29),
        (&[0, 0], 8, 8),
        (&[70], 300, 41),
        (&[300, 2], 3, 1),
        (&[], 8, 8),
    ];
    Form::ALL
        .into_iter()
        .flat_map(move |form| shapes.map(|(sizes, outer, n)| Case::new(form, sizes, outer, n, 11)))
}

/// D as a right kernel would leave it: rounded to bf16, NaN in the padding.
fn right(case: &Case) -> Vec<bf16> {
    let problem = case.problem();
    let rows = match case.form {
        Form::Wgrad => case.groups.len() * case.outer,
        _ => case.groups.capacity() as usize,
    };
    let mut d = vec![bf16::NAN; rows * case.n];
    for row in problem.all_rows() {
        for col in 0..case.n {
            d[row * case.n + col] = bf16::from_f64(case.naive(row, col));
        }
    }
    d
}

#[test]
fn sums_are_those_of_the_definition() {
    for case in cases() {
        let problem = case.problem();
        let sums = problem.sums(&problem.all_rows()).unwrap();
        for (row, values) in sums.exact(None).unwrap().iter() {
            for (col, &value) in values.iter().enumerate() {
                let expected = case.naive(row, col);
                assert!(
                    (value - expected).abs() <= 1e-9,
                    "{} row {row} column {col}: {value} for {expected}",
                    case.form.name()
                );
            }
        }
    }
}

#[test]
fn right_results_pass_both_references() {
    for case in cases() {
        let problem = case.problem();
        let sums = problem.sums(&problem.all_rows()).unwrap();
        let d = right(&case);
        assert!(sums.exact(None).unwrap().compare(&d).unwrap().passes(EXACT));
        let rounded = sums.rounded(Sink::Bf16, None).unwrap().compare(&d).unwrap();
        assert!(rounded.passes(ROUNDED), "{rounded:?}");
    }
}

/// Every planted fault is caught by both references.
#[test]
fn faults_are_caught() {
    for form in Form::ALL {
        let case = Case::new(form, &[90, 0, 1000, 1], 64, 64, 5);
        let problem = case.problem();
        let sums = problem.sums(&problem.all_rows()).unwrap();
        let (exact, rounded) = (
            sums.exact(None).unwrap(),
            sums.rounded(Sink::Bf16, None).unwrap(),
        );
        let n = case.n;
        let last = *problem.all_rows().last().unwrap();
        let first = problem.all_rows()[0];
        let row = |row: usize| row * n..(row + 1) * n;
        type Fault<'a> = (&'a str, Box<dyn Fn(&mut Vec<bf16>) + 'a>);
        let faults: [Fault<'_>; 8] = [
            ("a lost row", Box::new(|d| d[row(last)].fill(bf16::ZERO))),
            ("a NaN", Box::new(|d| d[last * n + 3] = bf16::NAN)),
            ("an infinity", Box::new(|d| d[first * n] = bf16::INFINITY)),
            (
                "swapped rows",
                Box::new(|d| {
                    for col in 0..n {
                        d.swap(first * n + col, (first + 1) * n + col);
                    }
                }),
            ),
            (
                "a doubled result",
                Box::new(|d| {
                    d.iter_mut()
                        .for_each(|value| *value = bf16::from_f64(value.to_f64() * 2.0));
                }),
            ),
            (
                "a row never written",
                Box::new(|d| d[row(first)].fill(bf16::NAN)),
            ),
            (
                "one wrong column",
                Box::new(|d| {
                    let at = first * n + 7;
                    d[at] = bf16::from_f64(d[at].to_f64() + 8.0);
                }),
            ),
            (
                "a row of another scale",
                Box::new(|d| {
                    for value in &mut d[row(last)] {
                        *value = bf16::from_f64(value.to_f64() * 1.03);
                    }
                }),
            ),
        ];
        for (what, plant) in faults {
            let mut d = right(&case);
            plant(&mut d);
            let [a, b] = [&exact, &rounded].map(|reference| reference.compare(&d).unwrap());
            assert!(!a.passes(EXACT), "{}: {what}: {a:?}", form.name());
            assert!(!b.passes(ROUNDED), "{}: {what}: {b:?}", form.name());
        }
    }
}

#[test]
fn rows_of_zeros_must_be_zeros() {
    let groups = Groups::new(&[4, 0]).unwrap();
    let (a, b) = (vec![bf16::ONE; 128 * 8], vec![bf16::ONE; 128 * 8]);
    let problem = Problem::wgrad(&groups, 8, 8, Operand::new(&a), Operand::new(&b)).unwrap();
    let reference = problem
        .sums(&problem.all_rows())
        .unwrap()
        .exact(None)
        .unwrap();
    let mut d = vec![4.0f32; 64];
    d.extend([0.0; 64]);
    assert!(reference.compare(&d).unwrap().is_equal());
    // 1e-30 is far under the whole norm's limit, and still not what an empty group gives.
    d[100] = 1e-30;
    let off = reference.compare(&d).unwrap();
    assert_eq!(off.worst_row, Some((12, f64::INFINITY)));
    assert!(!off.passes(EXACT) && off.whole < 1e-20);
}

#[test]
fn sinks_round_where_they_say() {
    let groups = Groups::new(&[1]).unwrap();
    // 1 + 2^-9 is exact in f32 and a tie in bf16; old + sum rounds once.
    let mut a = vec![bf16::ZERO; 128 * 2];
    let mut b = vec![bf16::ZERO; 128 * 2];
    (a[0], b[0]) = (
        bf16::from_f32(1.0 + 1.0 / 128.0),
        bf16::from_f32(1.0 + 1.0 / 128.0),
    );
    let problem = Problem::wgrad(&groups, 2, 2, Operand::new(&a), Operand::new(&b)).unwrap();
    let sums = problem.sums(&[0]).unwrap();
    let exact = (1.0 + 1.0 / 128.0f64).powi(2);
    let old = [0.25f32; 4];
    let first = |reference: Reference| reference.iter().next().unwrap().1[0];
    assert_eq!(first(sums.exact(Some(&old)).unwrap()), exact + 0.25);
    assert_eq!(
        first(sums.rounded(Sink::Bf16, None).unwrap()),
        bf16::from_f64(exact).to_f64()
    );
    assert_eq!(first(sums.rounded(Sink::F32, None).unwrap()), exact);
    assert_eq!(
        first(sums.rounded(Sink::AddF32, Some(&old)).unwrap()),
        exact + 0.25
    );
    let added = bf16::from_f64(exact + 0.25).to_f64();
    assert_eq!(
        first(sums.rounded(Sink::AddBf16, Some(&old)).unwrap()),
        added
    );
}

#[test]
fn sampled_rows_are_rows_of_the_whole() {
    let case = Case::new(Form::Forward, &[500, 3, 0, 700], 16, 9, 2);
    let problem = case.problem();
    let rows = problem.sample_rows(64, 9);
    assert!((64..=66).contains(&rows.len()), "{}", rows.len());
    assert_eq!((rows[0], rows[rows.len() - 1]), (0, 512 + 128 + 699));
    let all = problem
        .sums(&problem.all_rows())
        .unwrap()
        .exact(None)
        .unwrap();
    let some = problem.sums(&rows).unwrap().exact(None).unwrap();
    for (row, values) in some.iter() {
        assert!(all.iter().any(|whole| whole == (row, values)));
    }
    assert_eq!(problem.sample_rows(5000, 9), problem.all_rows());
}

#[test]
fn what_does_not_fit_is_an_error() {
    let groups = Groups::new(&[3]).unwrap();
    let values = vec![bf16::ONE; 128 * 8];
    let (good, short) = (Operand::new(&values), Operand::new(&values[1..]));
    let length = |what| OracleError::Length {
        what,
        len: 1023,
        needed: 1024,
    };
    assert_eq!(
        Problem::wgrad(&groups, 8, 8, short, good).unwrap_err(),
        length("A")
    );
    assert_eq!(
        Problem::wgrad(&groups, 8, 8, good, short).unwrap_err(),
        length("B")
    );
    let wide = good.with_row_stride(usize::MAX);
    assert_eq!(
        Problem::wgrad(&groups, 8, 8, wide, good).unwrap_err(),
        OracleError::Extent { what: "A" }
    );
    let problem = Problem::forward(&groups, 8, 8, good, good).unwrap();
    assert_eq!(problem.sums(&[3]).unwrap_err(), OracleError::Row { row: 3 });
    let reference = problem.sums(&[2]).unwrap().exact(None).unwrap();
    let error = reference.compare(&[0f32; 23]).unwrap_err();
    assert_eq!(
        error,
        OracleError::Length {
            what: "D",
            len: 23,
            needed: 24
        }
    );
    assert!(problem.sums(&[2]).unwrap().exact(Some(&[0.0; 8])).is_err());
    // Without a contraction no operand is needed, however wide D is.
    let none = Operand::new(&[]);
    let wide = Problem::forward(&groups, usize::MAX / 2, 0, none, none).unwrap();
    assert_eq!(
        wide.sums(&[0]).unwrap_err(),
        OracleError::Extent { what: "D" }
    );
}

/// One token, one expert: gate's sum is `tie` away from the middle of two bf16, up's is 1, and down
/// copies the activation into every column.
fn on_a_tie(tie: f32) -> Reference {
    let hidden = 8;
    let bf = bf16::from_f32;
    // 1 + 2^-8 is the middle of 1 and 1 + 2^-7.
    let mut gate = vec![bf(0.0); hidden];
    gate[..3].copy_from_slice(&[bf(1.0), bf(2f32.powi(-8)), bf(tie)]);
    let mut up = vec![bf(0.0); hidden];
    up[0] = bf(1.0);
    let down = vec![bf(1.0); hidden];
    let expert = Expert {
        gate: &gate,
        up: &up,
        down: &down,
    };
    let layer = Layer::new(hidden, vec![expert], None).unwrap();
    let tokens = Tokens {
        x: &vec![bf(1.0); hidden],
        topk_experts: &[0],
        router_weights: &[0.5],
    };
    layer.rounded_to_either_side(&tokens, &[0]).unwrap()
}

#[test]
fn a_rounding_that_no_f32_sum_decides_is_not_held_against_a_result() {
    let silu = |gate: f64| gate / (1.0 + (-gate).exp());
    let both = [1.0, 1.0 + 2f64.powi(-7)].map(|gate| {
        let y = bf16::from_f64(silu(gate)).to_f64();
        vec![bf16::from_f64(0.5 * y); 8]
    });
    assert_ne!(both[0], both[1]);
    // Too near to tell: either side is right, and no more than that.
    let near = on_a_tie(2f32.powi(-21));
    for side in &both {
        assert!(near.compare(side).unwrap().passes(ROUNDED));
    }
    let beyond = both[1]
        .iter()
        .map(|value| bf16::from_f32(1.01 * value.to_f32()));
    let beyond: Vec<bf16> = beyond.collect();
    assert!(!near.compare(&beyond).unwrap().passes(ROUNDED));
    // Far enough: one side only.
    for (tie, right) in [(2f32.powi(-16), 1), (-2f32.powi(-16), 0)] {
        let far = on_a_tie(tie);
        assert!(far.undecided().all(|(_, squares)| squares == 0.0));
        assert!(far.compare(&both[right]).unwrap().is_equal());
        assert!(!far.compare(&both[1 - right]).unwrap().passes(ROUNDED));
    }
}
