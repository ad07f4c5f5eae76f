-- How many offers each pool has in each stratum: a category, or in "transfer" a language.
SELECT pool, stratum, COUNT(*) AS offers
FROM pools
GROUP BY pool, stratum
