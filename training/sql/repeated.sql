-- Offer ids that stand in the lake several times, as in one that keeps revisions. Null has the rows
-- without an id.
SELECT offer_id, COUNT(*) AS copies
FROM lake
GROUP BY offer_id
HAVING COUNT(*) > 1 OR offer_id IS NULL
