"""Every one-symbol mutant of a piece of source, for the test that all of them are noticed."""

import ast
import copy
import textwrap

OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
}
SWAPS = {
    "logp": "ref_logp",
    "ref_logp": "logp",
    "logp_all": "ref_logp_all",
    "ref_logp_all": "logp_all",
    "log_p": "log_q",
    "log_q": "log_p",
    "no_p": "no_q",
    "no_q": "no_p",
    "low": "high",
    "high": "low",
    "only_p": "only_q",
    "only_q": "only_p",
    "at_zero": "at_infinity",
    "at_infinity": "at_zero",
    "reverse_kl": "forward_kl",
    "forward_kl": "reverse_kl",
    "policy": "reference",
    "reference": "policy",
    "bregman": "generic",
    "published": "generic",
}
NEGATED = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
UNWRAPPED = {
    "stop_gradient",
    "exp",
    "expm1",
    "log",
    "sqrt",
    "score_ratio",
    "detach",
    "Abs",
    "sign",
    "_visits",
    "_policy_visits",
    "_mean",
}


def _branches(node):
    """Replacements of what decides between two ways."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in NEGATED:
        turned = copy.deepcopy(node)
        turned.ops[0] = NEGATED[type(node.ops[0])]()
        yield f"{ast.unparse(node)} negated", turned
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"{ast.unparse(node)} negated", node.operand
    elif isinstance(node, ast.BoolOp):
        turned = copy.deepcopy(node)
        turned.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield f"{ast.unparse(node)} with the other connective", turned


def _variants(node):
    """Replacements of one node, each with a description."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        swapped = copy.deepcopy(node)
        swapped.op = OPERATORS[type(node.op)]()
        yield f"{type(node.op).__name__} to {type(swapped.op).__name__}", swapped
        if isinstance(node.op, ast.Sub | ast.Div):
            turned = copy.deepcopy(node)
            turned.left, turned.right = turned.right, turned.left
            yield f"operands of {type(node.op).__name__} exchanged", turned
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Invert):
        yield f"{type(node.op).__name__} dropped", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value is not True:
        yield f"{node.value} to {node.value + 1}", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and node.value in SWAPS:
        yield f"{node.value!r} to {SWAPS[node.value]!r}", ast.Constant(SWAPS[node.value])
    elif isinstance(node, ast.Name) and node.id in SWAPS and isinstance(node.ctx, ast.Load):
        yield f"{node.id} to {SWAPS[node.id]}", ast.Name(SWAPS[node.id], ast.Load())
    elif isinstance(node, ast.Attribute) and node.attr in SWAPS:
        yield f".{node.attr} to .{SWAPS[node.attr]}", ast.Attribute(node.value, SWAPS[node.attr], ast.Load())
    elif isinstance(node, ast.Call):
        yield from _calls(node)


def _calls(node):
    if isinstance(node.func, ast.Name) and node.func.id in UNWRAPPED and node.args:
        yield f"{node.func.id} dropped", node.args[0]
        if node.func.id == "expm1":
            yield "expm1 to exp", ast.Call(ast.Name("exp", ast.Load()), node.args, [])
    elif isinstance(node.func, ast.Attribute) and node.func.attr in UNWRAPPED:
        inner = node.args[0] if node.args else node.func.value
        yield f".{node.func.attr}() dropped", inner


class _Replace(ast.NodeTransformer):
    def __init__(self, index, replacement):
        self.index, self.replacement, self.seen = index, replacement, -1

    def visit(self, node):
        self.seen += 1
        if self.seen == self.index:
            return self.replacement
        return self.generic_visit(node)


def _preorder(node):
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _preorder(child)


def mutants(source, *, branches=False):
    """(description, source): first the formula as it is, "unchanged", then every mutant.

    Docstrings, decorators and annotations are left out. ``branches`` turns conditions too.
    """
    tree = ast.parse(textwrap.dedent(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list, node.returns = [], None
            if ast.get_docstring(node):
                node.body = node.body[1:]
            for argument in [*node.args.args, *node.args.kwonlyargs]:
                argument.annotation = None
    yield "unchanged", ast.unparse(tree)
    for index, node in enumerate(_preorder(tree)):
        for description, replacement in [*_variants(node), *(_branches(node) if branches else ())]:
            mutated = _Replace(index, replacement).visit(copy.deepcopy(tree))
            yield description, ast.unparse(ast.fix_missing_locations(mutated))
