"""Running artifacts: load, bind, guard, launch. Imports no compiler, no sympy, no triton."""
