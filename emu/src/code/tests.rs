//! Small programs as other compilers write them.

use crate::machine::{Config, Launch, Machine};
use crate::program::{Program, ProgramError};

const HEADER: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n";
/// The beginning of an entry that writes `%r1` of each thread.
const ENTRY: &str = ".visible .entry k(.param .u64 out) { .reg .pred %p<4>; .reg .f32 %f<4>;
    .reg .b32 %r<9>; .reg .b64 %rd<9>; mov.u32 %r1, %tid.x;";
const END: &str = "ld.param.u64 %rd1, [out]; mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r1; ret; }";

fn load(module: &str, body: &str) -> Result<(Machine, Program), ProgramError> {
    let mut machine = Machine::new(Config::default());
    let text = format!("{HEADER}{module}{ENTRY}{body}{END}");
    let program = Program::load(&mut machine, 0, &text)?;
    Ok((machine, program))
}

/// What 32 threads write.
fn run(module: &str, body: &str) -> Vec<u32> {
    let (mut machine, program) = load(module, body).unwrap();
    let out = machine.memory.alloc(0, 128).unwrap();
    machine
        .launch(Launch {
            entry: program.entries[0].clone(),
            gpu: 0,
            grid: [1; 3],
            block: [32, 1, 1],
            cluster: [1; 3],
            dynamic_shared: 0,
            params: out.to_le_bytes().to_vec(),
        })
        .unwrap();
    machine.run();
    assert_eq!(machine.findings().0, []);
    let bytes = machine.memory.read(out, 128).unwrap();
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn error(module: &str, body: &str) -> String {
    load(module, body).unwrap_err().to_string()
}

fn each(value: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(value).collect()
}

/// `(x, y) -> x * y`, by way of a nested call and a branch with two returns.
const PRODUCT: &str = ".func (.param .b32 ret) twice(.param .b32 x) { .reg .b32 %r<3>;
    ld.param.u32 %r1, [x]; add.u32 %r2, %r1, %r1; st.param.b32 [ret+0], %r2; ret; }
.func (.param .b32 ret) product(.param .b32 x, .param .b32 y) { .reg .pred %p<2>; .reg .b32 %r<5>;
    ld.param.u32 %r1, [x]; ld.param.u32 %r2, [y]; setp.ne.u32 %p1, %r2, 2; @%p1 bra other;
    { .param .b32 a; st.param.b32 [a], %r1; .param .b32 r; call.uni (r), twice, (a);
      ld.param.b32 %r3, [r]; }
    st.param.b32 [ret], %r3; ret;
    other: mul.lo.u32 %r3, %r1, %r2; st.param.b32 [ret], %r3; ret; }";
const CALL_PRODUCT: &str = "{ .param .b32 a; .param .b32 b; .param .b32 r; st.param.b32 [a], %r1;
    st.param.b32 [b], %r3; call.uni (r), product, (a, b); ld.param.b32 %r1, [r]; }";

#[test]
fn a_label_is_of_the_braces_around_it() {
    let part = "{ .reg .pred done; again: add.u32 %r1, %r1, 16; setp.ge.u32 done, %r1, LIMIT;
        @!done bra.uni again; }";
    let body = part.replace("LIMIT", "100") + &part.replace("LIMIT", "200");
    assert_eq!(
        run("", &body),
        each(|t| 208 + t % 16 - 16 * u32::from(t % 16 >= 8))
    );
    let outside = "{ inner: add.u32 %r1, %r1, 1; } bra inner;";
    assert!(error("", outside).contains("there is no label `inner`"));
}

#[test]
fn the_third_source_of_a_maximum_may_be_missing() {
    let body = "cvt.rn.f32.u32 %f1, %r1; max.f32 %f2, %f1, 0f41200000;
        min.f32 %f2, %f2, 0f41A00000; cvt.rzi.u32.f32 %r1, %f2;";
    assert_eq!(run("", body), each(|t| t.clamp(10, 20)));
    assert!(error("", "max.f32 %f1, %f2;").contains("it takes 3 sources, not 1"));
}

#[test]
fn a_copy_of_no_bytes_reads_nothing() {
    let body = "mov.u32 %r3, s; mad.lo.u32 %r3, %r1, 16, %r3; ld.param.u64 %rd3, [out];
        add.s64 %rd3, %rd3, 4096; mov.u32 %r4, 0; st.shared.u32 [%r3+8], %r1;
        cp.async.cg.shared.global [%r3], [%rd3], 16, %r4; cp.async.wait_all;
        ld.shared.u32 %r1, [%r3+8];";
    assert_eq!(run(".shared .align 16 .b8 s[512];", body), each(|_| 0));
}

#[test]
fn functions_are_called() {
    let twice = format!("mov.u32 %r3, 3; {CALL_PRODUCT} mov.u32 %r3, 2; {CALL_PRODUCT}");
    assert_eq!(run(PRODUCT, &twice), each(|t| 6 * t));
    // Some threads call, with different arguments.
    let some = format!(
        "and.b32 %r3, %r1, 3; setp.eq.u32 %p1, %r3, 0; @%p1 bra skip; {CALL_PRODUCT} skip:"
    );
    let want = each(|t| if t % 4 == 0 { t } else { t * (t % 4) });
    assert_eq!(run(PRODUCT, &some), want);
    let guarded = format!(
        "mov.u32 %r3, 5; setp.lt.u32 %p1, %r1, 7; {}",
        CALL_PRODUCT.replace("call.uni", "st.param.b32 [r], %r1; @!%p1 call")
    );
    assert_eq!(
        run(PRODUCT, &guarded),
        each(|t| if t < 7 { t } else { 5 * t })
    );
}

#[test]
fn functions_are_called_through_pointers() {
    let module = ".func (.param .b32 ret) twice(.param .b32 x);
.func (.param .b32 ret) minus(.param .b32 x) { .reg .b32 %r<3>;
    ld.param.u32 %r1, [x]; neg.s32 %r2, %r1; st.param.b32 [ret], %r2; ret; }";
    let body = "and.b32 %r3, %r1, 1; mul.wide.u32 %rd3, %r3, 8; mov.u64 %rd4, table;
        add.s64 %rd4, %rd4, %rd3; ld.global.u64 %rd5, [%rd4];
        { .param .b32 a; st.param.b32 [a], %r1; .param .b32 r;
          prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
          call (r), %rd5, (a), prototype; ld.param.b32 %r1, [r]; }";
    let table = ".global .align 8 .u64 table[2] = {twice, minus};";
    let want = each(|t| if t % 2 == 0 { 2 * t } else { t.wrapping_neg() });
    assert_eq!(run(&format!("{module}{PRODUCT}{table}"), body), want);
}

#[test]
fn functions_have_local_and_shared_variables() {
    // The sum of an array of the caller's and of the function's own, which all threads share.
    let module = ".func (.param .b32 ret) f(.param .b64 p, .param .align 8 .b8 s[16]) {
        .local .align 8 .b8 own[8]; .shared .align 4 .u32 all; .reg .b32 %r<6>; .reg .pred %p<2>;
        .reg .b64 %rd<5>;
        ld.param.u64 %rd1, [p]; ld.u32 %r1, [%rd1]; ld.param.v2.u32 {%r2, %r3}, [s+8];
        st.local.u32 [own+4], %r2; mov.u64 %rd2, own; cvta.local.u64 %rd2, %rd2;
        ld.u32 %r2, [%rd2+4]; mov.u32 %r5, %tid.x;
        setp.eq.u32 %p1, %r5, 0; @%p1 st.shared.u32 [all], 7; bar.sync 0;
        atom.shared.add.u32 %r4, [all], 1; bar.sync 0;
        ld.shared.u32 %r4, [all]; bar.sync 0; add.u32 %r1, %r1, %r2; add.u32 %r1, %r1, %r3;
        add.u32 %r1, %r1, %r4; st.param.b32 [ret], %r1; ret; }";
    let call = "mov.u64 %rd3, mine; cvta.local.u64 %rd3, %rd3; st.local.u32 [mine], %r1;
        { .param .b64 a; st.param.b64 [a], %rd3; .param .align 8 .b8 b[16];
          st.param.v2.b32 [b+8], {100, 1000}; .param .b32 r; call.uni (r), f, (a, b);
          ld.param.b32 %r1, [r]; }";
    let body = format!(".local .align 4 .b8 mine[4]; {call} {call}");
    assert_eq!(run(module, &body), each(|t| t + 2200 + 39 + 39));
}

#[test]
fn calls_that_can_not_be_are_named() {
    let recursive = ".func f() { call f; ret; }";
    assert!(error(recursive, "call f;").contains("`f` calls itself"));
    assert!(error("", "call printf;").contains("there is no function `printf` in the file"));
    let few = "{ .param .b32 r; call (r), product, (); }";
    assert!(error(PRODUCT, few).contains("`product` has 2 arguments, not 0"));
    let wide = "{ .param .b64 a; .param .b32 r; call (r), twice, (a); }";
    assert!(error(PRODUCT, wide).contains("takes a .param variable of 4 bytes"));
}
