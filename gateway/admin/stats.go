package admin

import ()

// statsSchema versions the document of stats.
const statsSchema = "smcgw.stats/v1"
