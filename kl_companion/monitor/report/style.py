"""The style sheet of a report: light and dark, wide and narrow, without anything from elsewhere."""

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1f2933; --soft: #52606d; --quiet: #f4f6f8;
  --line: #d9dfe5;
  --accent: #0072b2; --wrong: #b3261e; --attention: #8a5300; --fine: #17694b; --mark: #fdecc8; }
@media (prefers-color-scheme: dark) { :root { --page: #14181d; --ink: #e6e9ec; --soft: #a8b3bd;
  --quiet: #1d242b;
  --line: #3a444e; --accent: #6cb6e0; --wrong: #ff9a90; --attention: #f0b35a; --fine: #7bd3a8;
  --mark: #5a4413; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); line-height: 1.55; overflow-wrap: break-word;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
header, main, footer { max-width: 74rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2rem; }
header p { margin: 0; color: var(--soft); }
h1 { font-size: 1.9rem; font-weight: 650; line-height: 1.2; letter-spacing: -.012em; margin: .1rem 0 .3rem; }
h2 { font-size: 1.35rem; font-weight: 620; margin: 2.6rem 0 .8rem; padding-top: .9rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1.06rem; font-weight: 620; line-height: 1.4; margin: 0 0 .35rem; }
p { max-width: 74ch; margin: 0 0 .5rem; }
code { font-size: .85em; color: var(--soft); overflow-wrap: anywhere; }
.headline { margin: 1.4rem 0 1.2rem; padding: 1rem 1.3rem 1.1rem; border-radius: .5rem;
  background: var(--quiet);
  border-left: 6px solid var(--level); }
.headline h2 { border: 0; margin: 0 0 .25rem; padding: 0; font-size: 1rem; color: var(--level); }
.headline p { margin: 0; max-width: none; }
.headline .lead { font-size: 1.35rem; line-height: 1.35; font-weight: 600; margin-bottom: .35rem;
  max-width: 60ch; }
.headline .note { color: var(--soft); }
.wrong { --level: var(--wrong); } .attention { --level: var(--attention); } .fine { --level: var(--fine); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .7rem; margin: 0; }
.tiles div { background: var(--quiet); border-radius: .5rem; padding: .65rem .9rem .7rem; }
.tiles dt { color: var(--soft); font-size: .88rem; line-height: 1.3; }
.tiles dd { margin: .1rem 0 0; font-size: 1.5rem; font-weight: 620; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tiles small { display: block; font-size: .82rem; font-weight: 400; color: var(--soft); }
.verdicts { list-style: none; margin: 0; padding: 0; display: grid; gap: .8rem; }
.verdicts li { border: 1px solid var(--line); border-left: 4px solid var(--level); border-radius: .4rem;
  padding: .8rem 1.1rem .7rem; }
.level { color: var(--level); font-size: .85rem; font-weight: 620; margin: 0 0 .1rem; }
.verdicts p { font-size: .96rem; }
.verdicts .todo { background: var(--quiet); border-radius: .35rem; padding: .5rem .8rem; max-width: 78ch; }
@media (min-width: 900px) {
  .verdicts { grid-template-columns: 1fr 1fr; }
  .verdicts li:not(.fine) { grid-column: 1 / -1; display: grid; grid-template-columns: 1fr 1fr;
  gap: 0 1.6rem; align-items: start; }
  .verdicts :is(.level, h3) { grid-column: 1 / -1; }
  .verdicts p.todo { margin: 0 0 .4rem; }
}
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr));
  gap: 1.4rem 1.6rem; }
.curves figure:first-child { grid-column: 1 / -1; }
figure { margin: 0; min-width: 0; }
figure h3 { margin-bottom: .1rem; }
figcaption { font-size: .9rem; color: var(--soft); max-width: 74ch; margin-bottom: .3rem; line-height: 1.4; }
svg { display: block; width: 100%; height: auto; font: 13px system-ui, -apple-system, "Segoe UI", Roboto,
  "DejaVu Sans", sans-serif; }
svg.narrow { display: none; }
svg .grid { stroke: var(--line); fill: none; } svg .tick { fill: var(--soft); } svg .end { fill: var(--ink); }
svg .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
svg .thin { fill: none; stroke-width: 1.1; stroke-linejoin: round; stroke-linecap: round;
  stroke-opacity: .65; }
svg .mark { stroke: var(--soft); stroke-dasharray: 5 4; fill: none; }
.scroll { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; width: 100%; }
caption { text-align: left; color: var(--soft); font-size: .92rem; padding-bottom: .4rem; max-width: 74ch; }
th, td { text-align: left; vertical-align: top; padding: .38rem .6rem;
  border-bottom: 1px solid var(--line); font-weight: 400; }
thead th { border-bottom: 2px solid var(--accent); font-weight: 620; vertical-align: bottom; }
td.n, th.n { text-align: right; white-space: nowrap; }
tbody th b { font-weight: 620; } td small, th small { display: block; color: var(--soft);
  font-size: .86rem; line-height: 1.4; max-width: 74ch; }
td.text { overflow-wrap: anywhere; } td.text span { color: var(--soft); }
mark { background: var(--mark); color: inherit; padding: .05em .15em; border-radius: .2em;
  white-space: pre; display: inline-block; line-height: 1.25; max-width: 100%; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: 1.6rem 2rem; }
.every td, .every th { white-space: nowrap; padding: .2rem .55rem; font-size: .84rem; text-align: right; }
details > summary { cursor: pointer; font-weight: 620; padding: .5rem 0; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
footer { margin-top: 2.6rem; padding-bottom: 2.5rem; color: var(--soft); font-size: .9rem; }
@media (max-width: 640px) {
  header, main, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 1.2rem; }
  h1 { font-size: 1.55rem; } h2 { font-size: 1.25rem; margin-top: 2rem; }
  .headline { padding: .9rem 1rem; } .headline .lead { font-size: 1.15rem; }
  .tiles { grid-template-columns: 1fr 1fr; } .tiles dd { font-size: 1.25rem; }
  .verdicts li { padding: .7rem .8rem; }
  svg.wide { display: none; } svg.narrow { display: block; }
  th, td { padding: .34rem .35rem; } table { font-size: .88rem; }
  .middle { display: none; }
}
@media print { :root { color-scheme: light; } .verdicts li, figure, tr { break-inside: avoid; } }
"""
