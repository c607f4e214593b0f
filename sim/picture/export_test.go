package picture

// Figures are what a page shows of each metric: a page has each of them, with its unit.
var Figures = figures
